"""Choose the engine and the device for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from localspec.devices import accelerators
from localspec.devices.accelerators import Device
from localspec.devices.libraries import LIBRARIES
from localspec.errors import UnknownDevice

AUTO = "auto"
PREFERENCE = ("cuda", "hpu", "discrete", "integrated")


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine, its device, and the reason for the choice."""

    engine: str
    device: str
    reason: str


def choose(device: str | None = None, fits: Callable[[Device], bool] = lambda _: True) -> Chosen:
    """Return the engine and the device for a model that every engine can read.

    The order is: CUDA or Gaudi if the model `fits`, then OpenVINO's discrete GPU, its integrated GPU, its
    CPU. An NPU is chosen only if `device` names it. Raises UnknownDevice for a device that does not exist.
    """
    if device is not None:
        return _requested(device)
    skipped: list[str] = []
    for kind in PREFERENCE:
        chosen = next((device for device in accelerators.devices_of(kind) if fits(device)), None)
        if chosen:
            return Chosen(chosen.engine, chosen.name, "; ".join([*skipped, f"{chosen.title} is available"]))
        skipped += why_skipped(kind)
    return Chosen("openvino", "CPU", "; ".join(skipped) or "no GPU that an installed engine can use")


def _requested(device: str) -> Chosen:
    family = device.split(":")[0].split(".")[0]
    reason = f"`{device}` was requested"
    if family in ("cuda", "hpu", "mps"):
        return Chosen("torch", device, reason)
    if family in ("AUTO", "CPU", "GPU"):
        return Chosen("openvino", device, reason)
    if family == "NPU":
        return Chosen("npu", device, reason)
    raise UnknownDevice(device, dict.fromkeys(known.name for known in accelerators.all_devices()))


def why_skipped(kind: str) -> Iterator[str]:
    """Say why a card with a driver is not chosen; yield nothing without one."""
    drivers = {"cuda": accelerators.has_nvidia_driver, "hpu": accelerators.has_gaudi_driver}
    if kind not in drivers or not drivers[kind]():
        return
    card = "an NVIDIA card" if kind == "cuda" else "a Gaudi card"
    if LIBRARIES["torch"].version is None:
        yield f"{card} is present, but torch is not installed: {LIBRARIES['torch'].install}"
    elif not accelerators.devices_of(kind):
        yield f"{card} is present, but torch cannot use it"
    else:
        yield f"{card} is present, but the model does not fit"
