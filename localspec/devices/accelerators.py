"""The devices that the installed engines can use.

The search is cheap: a library is asked only for devices whose driver is installed.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from localspec import children
from localspec.devices.libraries import LIBRARIES
from localspec.signals import signal_stack_kept

NVIDIA_PATHS = ("/proc/driver/nvidia/version", "/dev/dxg")  # Linux, and its subsystem on Windows
NVIDIA_FACTS = "uuid,name,memory.total,driver_version,clocks.max.sm"
GAUDI_PATH = "/sys/module/habanalabs"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that an engine can use; `name` is the value for `--device`.

    `memory` is in bytes, `clock` the highest of its processors in MHz.
    """

    engine: str
    name: str
    title: str
    kind: str  # cpu, integrated, discrete, npu, cuda, hpu
    memory: int | None = None
    free: int | None = None
    driver: str = ""
    clock: int | None = None


class NvidiaCard(NamedTuple):
    """A card as its driver describes it: memory in bytes, and the highest clock of its processors in MHz."""

    uuid: str
    title: str
    memory: int
    driver: str
    clock: int | None


def all_devices() -> list[Device]:
    """List the devices that the installed engines can use."""
    return [*openvino_devices(), *cuda_devices(), *gaudi_devices()]


def devices_of(kind: str) -> list[Device]:
    """List the devices of one kind."""
    if kind == "cuda":
        return cuda_devices()
    if kind == "hpu":
        return gaudi_devices()
    return [device for device in openvino_devices() if device.kind == kind]


def has_nvidia_driver() -> bool:
    """Return whether an NVIDIA driver is installed."""
    return any(map(Path.exists, map(Path, NVIDIA_PATHS))) or shutil.which("nvidia-smi") is not None


def has_gaudi_driver() -> bool:
    """Return whether a Gaudi driver is installed."""
    return Path(GAUDI_PATH).exists()


@functools.cache
@signal_stack_kept()
def openvino_devices() -> list[Device]:
    """List the devices of OpenVINO."""
    if LIBRARIES["openvino"].version is None:
        return []
    import openvino as ov

    core = ov.Core()
    return [_openvino_device(core, name) for name in core.available_devices]


def _openvino_device(core: Any, name: str) -> Device:
    family = name.split(".")[0]
    kind = {"CPU": "cpu", "NPU": "npu"}.get(family, "discrete")
    if family == "GPU" and "integrated" in str(_property(core, name, "DEVICE_TYPE")).lower():
        kind = "integrated"
    memory = _property(core, name, "GPU_DEVICE_TOTAL_MEM_SIZE") if family == "GPU" else None
    driver = _property(core, name, "NPU_DRIVER_VERSION") if family == "NPU" else None
    return Device(
        engine="npu" if family == "NPU" else "openvino",
        name=name,
        title=str(_property(core, name, "FULL_DEVICE_NAME") or name),
        kind=kind,
        memory=memory,
        driver="" if driver is None else str(driver),
    )


def _property(core: Any, device: str, name: str) -> Any:
    """Return a property of an OpenVINO device, None if it does not have it."""
    try:
        return core.get_property(device, name)
    except RuntimeError:
        return None


def cuda_devices() -> list[Device]:
    """List the CUDA devices of torch."""
    if not has_nvidia_driver() or LIBRARIES["torch"].version is None:
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    cards = {card.uuid: card for card in nvidia_cards()}
    driver = next((card.driver for card in cards.values()), "")
    devices = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found = torch.cuda.get_device_properties(index)
        card = cards.get(f"GPU-{getattr(found, 'uuid', '')}")
        clock = card.clock if card else None
        devices.append(Device("torch", f"cuda:{index}", found.name, "cuda", total, free, driver, clock))
    return devices


@functools.cache
def nvidia_cards() -> tuple[NvidiaCard, ...]:
    """Return NVIDIA's cards as `nvidia-smi` lists them, none without it; no library is loaded."""
    if not has_nvidia_driver():
        return ()
    command = ["nvidia-smi", f"--query-gpu={NVIDIA_FACTS}", "--format=csv,noheader,nounits"]
    try:
        asked = children.run(command, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ()
    lines = asked.stdout.decode("utf-8", "replace").splitlines() if not asked.returncode else []
    return tuple(filter(None, map(_nvidia_card, lines)))


def _nvidia_card(line: str) -> NvidiaCard | None:
    """Return the card of a line of `nvidia-smi`, which writes "[N/A]" for what it does not know."""
    facts = [part.strip() for part in line.split(",")]
    if len(facts) != NVIDIA_FACTS.count(",") + 1 or not facts[2].isdecimal():
        return None
    uuid, title, mebibytes, driver, clock = facts
    return NvidiaCard(uuid, title, int(mebibytes) << 20, driver, int(clock) if clock.isdecimal() else None)


def gaudi_devices() -> list[Device]:
    """List the Gaudi cards of torch. Not tested on Gaudi hardware."""
    if not has_gaudi_driver() or LIBRARIES["torch"].version is None or find_spec("habana_frameworks") is None:
        return []
    import habana_frameworks.torch.hpu as hpu

    if not hpu.is_available():
        return []
    version = Path(GAUDI_PATH) / "version"
    driver = version.read_text("utf-8", "replace").strip() if version.exists() else ""
    devices = []
    for index in range(hpu.device_count()):
        free, total = hpu.mem_get_info(index)
        devices.append(
            Device("torch", f"hpu:{index}", hpu.get_device_name(index), "hpu", total, free, driver)
        )
    return devices
