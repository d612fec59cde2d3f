"""The device of an OpenVINO graph: its compile settings, and the memory of its KV cache.

Not tested on GPU hardware: the GPU settings follow OpenVINO's documentation and were tried on a stand-in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from localspec.errors import UnknownDevice

GROUP = 32  # activations that share an int8 scale on a CPU, for a graph that does not say how its weights do
SENSITIVE = 400_000_000  # bytes of weights of such a graph below which int8 activations cost too much


@dataclass(frozen=True, slots=True)
class Placement:
    """A device by the name of an existing one."""

    device: str

    @property
    def on_card(self) -> bool:
        """Return whether the KV cache lies in a GPU's memory."""
        return self.device.startswith("GPU")

    def settings(
        self, precision: str, kv: str, group: int, weighs: int, weight_group: int | None
    ) -> dict[str, str]:
        """Return the compile settings; "auto" and -1 stand for the choices for this device and model.

        Activations share a scale where weights do, because a product over fewer is slower and one over more
        leaves the fast path. `weight_group` is how many weights share one, None if unknown; `weighs` is the
        bytes of the model's weights. A GPU computes in float16.
        """
        own = weight_group or (0 if weighs < SENSITIVE else GROUP)
        own = 0 if self.on_card else own
        found = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": (
                ("f16" if self.on_card else "f32") if precision == "auto" else precision
            ),
            "KV_CACHE_PRECISION": "i8" if self.on_card and kv == "u8" else kv,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(own if group < 0 else group),
        }
        if kv == "u8" or not self.on_card:  # a cache quantized by channel cannot be rewound exactly
            found["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
        return found

    def encoder_settings(self, core: Any) -> dict[str, str]:
        """Return the compile settings in which a speech model's encoder differs: it reads a lot at once.

        On a processor with bfloat16 that is faster than int8 activations, and nearer to float32.
        """
        if self.on_card or "BF16" not in core.get_property(self.device, "OPTIMIZATION_CAPABILITIES"):
            return {}
        return {"INFERENCE_PRECISION_HINT": "bf16", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}

    def cache(self, compiled: Any, element: Any, shape: list[int], old: Any = None, kept: int = 0) -> Any:
        """Return a cache tensor of `shape` with the first `kept` blocks of `old`.

        A GPU's memory cannot be copied block by block: the blocks pass through main memory when a cache
        doubles.
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
        """Return the tensor, or a copy in main memory of one on a GPU."""
        if not self.on_card:
            return tensor
        import openvino as ov

        copy = ov.Tensor(element, ov.Shape([tensor.get_shape()[0], *shape[1:]]))
        tensor.copy_to(copy)
        return copy


def place(core: Any, device: str) -> Placement:
    """Return the placement for `device`; `GPU` and `AUTO` stand for an existing device.

    `AUTO` is a discrete GPU, else an integrated one, else the CPU; `AUTO:GPU,CPU` is the first existing
    device of the list. Raises UnknownDevice, naming the existing ones.
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
    """Return the devices of a name or family, discrete GPUs before integrated ones."""
    if wish in there:
        return [wish]
    family = [name for name in there if name.split(".")[0] == wish]
    return sorted(
        family, key=lambda name: "integrated" in str(core.get_property(name, "DEVICE_TYPE")).lower()
    )
