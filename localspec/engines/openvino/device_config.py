"""Where an OpenVINO graph runs, and all that differs from device to device: settings, and the cache's memory.

GPUs were not at hand: what is said about them is the library's documentation, tried on a stand-in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localspec.errors import UnknownDevice

GROUP = 32  # activations that share an int8 scale on a CPU; a GPU computes in float16 and rounds none
SENSITIVE = 400_000_000  # bytes of weights below which rounding activations changes the text beyond near ties


@dataclass(frozen=True, slots=True)
class Placement:
    """A device by its real name, and how its memory is used."""

    device: str

    @property
    def on_card(self) -> bool:
        """Tell whether the cache lies in a GPU's memory."""
        return self.device.startswith("GPU")

    def settings(self, precision: str, kv: str, group: int, weighs: int) -> dict[str, str]:
        """Return what the graph is compiled with; "auto" and -1 are the choices for this device and model.

        `weighs` is the bytes of the model's weights: small models keep their activations in float32.
        """
        own = 0 if self.on_card or weighs < SENSITIVE else GROUP
        found = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": (
                ("f16" if self.on_card else "f32") if precision == "auto" else precision
            ),
            "KV_CACHE_PRECISION": "i8" if self.on_card and kv == "u8" else kv,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(own if group < 0 else group),
        }
        if kv == "u8" or not self.on_card:  # by channel a rewind would leave a trace
            found["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
        return found

    def cache(self, compiled: Any, element: Any, shape: list[int], old: Any = None, kept: int = 0) -> Any:
        """Return a cache tensor of `shape`, the first `kept` blocks of it those of `old`.

        A card's memory has no rows that could be copied in place: they go through the computer's, whenever a
        cache doubles.
        """
        import openvino as ov

        new = ov.Tensor(element, ov.Shape(shape))
        if old is not None and kept:
            new.data[:kept] = self._in_reach(old, element, shape).data[:kept]
        if not self.on_card:
            return new
        there = compiled.get_context().create_tensor(element, ov.Shape(shape), {})
        if old is not None and kept:
            there.copy_from(new)
        return there

    def _in_reach(self, tensor: Any, element: Any, shape: list[int]) -> Any:
        """Return the tensor itself, or a copy in the computer's memory of one that a card holds."""
        if not self.on_card:
            return tensor
        import openvino as ov

        copy = ov.Tensor(element, ov.Shape([tensor.get_shape()[0], *shape[1:]]))
        tensor.copy_to(copy)
        return copy


def place(core: Any, device: str) -> Placement:
    """Return where `device` is: `GPU` and `AUTO` stand for one of those that are there.

    `AUTO` is a discrete GPU, else an integrated one, else the CPU; `AUTO:GPU,CPU` the first of the list that
    is there. Raises UnknownDevice, naming those there are.
    """
    there: list[str] = core.available_devices
    family, _, wished = device.partition(":")
    if family == "AUTO":
        wanted = [name for name in wished.split(",") if name] or ["GPU", "CPU"]
        found = [name for wish in wanted for name in _named(core, wish, there)]
    else:
        found = _named(core, device, there)
    if not found:
        raise UnknownDevice(device, [*there, "AUTO"])
    return Placement(found[0])


def _named(core: Any, wish: str, there: list[str]) -> list[str]:
    """Return the devices that a name stands for, discrete GPUs before integrated ones."""
    if wish in there:
        return [wish]
    family = [name for name in there if name.split(".")[0] == wish]
    return sorted(
        family, key=lambda name: "integrated" in str(core.get_property(name, "DEVICE_TYPE")).lower()
    )
