"""The device of a graph: the names of devices, their settings, and a GPU's cache on a stand-in."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest

from localspec.engines.openvino.device_config import Placement, place
from localspec.errors import UnknownDevice


class Core:
    """A machine with the devices that are named, integrated ones marked by a dash."""

    def __init__(self, *devices: str) -> None:
        self.available_devices = [name.rstrip("-") for name in devices]
        self._integrated = {name[:-1] for name in devices if name.endswith("-")}

    def get_property(self, device: str, name: str) -> str:
        assert name == "DEVICE_TYPE"
        return "Type.INTEGRATED" if device in self._integrated else "Type.DISCRETE"


@pytest.mark.parametrize(
    ("there", "asked", "expected"),
    [
        (("CPU",), "CPU", "CPU"),
        (("CPU",), "AUTO", "CPU"),
        (("CPU", "GPU"), "GPU", "GPU"),
        (("CPU", "GPU.0-", "GPU.1"), "GPU", "GPU.1"),
        (("CPU", "GPU.0-", "GPU.1"), "GPU.0", "GPU.0"),
        (("CPU", "GPU.0-", "GPU.1"), "AUTO", "GPU.1"),
        (("CPU", "GPU.0-", "GPU.1"), "AUTO:CPU,GPU", "CPU"),
        (("CPU", "GPU-"), "AUTO:NPU,GPU", "GPU"),
    ],
)
def test_a_name_stands_for_a_device_that_is_there(there: tuple[str, ...], asked: str, expected: str) -> None:
    assert place(Core(*there), asked).device == expected


@pytest.mark.parametrize("asked", ["TPU", "GPU", "CPU.3", "AUTO:GPU"])
def test_another_name_is_refused(asked: str) -> None:
    with pytest.raises(UnknownDevice, match=asked) as caught:
        place(Core("CPU", "NPU"), asked)
    assert "`CPU`" in (caught.value.hint or "")


def test_settings_are_the_devices_own_unless_asked() -> None:
    cpu, gpu = (Placement(name).settings("auto", "f16", -1, 10**9, None) for name in ("CPU", "GPU.1"))
    assert (cpu["INFERENCE_PRECISION_HINT"], gpu["INFERENCE_PRECISION_HINT"]) == ("f32", "f16")
    assert (cpu["DYNAMIC_QUANTIZATION_GROUP_SIZE"], gpu["DYNAMIC_QUANTIZATION_GROUP_SIZE"]) == ("32", "0")
    assert cpu["KEY_CACHE_QUANT_MODE"] == "BY_TOKEN"
    assert "KEY_CACHE_QUANT_MODE" not in gpu
    asked = Placement("GPU").settings("f32", "u8", 64, 10**9, None)
    assert asked["INFERENCE_PRECISION_HINT"] == "f32"
    assert (asked["KV_CACHE_PRECISION"], asked["KEY_CACHE_QUANT_MODE"]) == ("i8", "BY_TOKEN")


class OnCard:
    """A tensor that only copies as a whole, as a card's does."""

    def __init__(self, element: Any, shape: Any) -> None:
        self._held = ov.Tensor(element, shape)

    def get_shape(self) -> list[int]:
        return list(self._held.shape)

    def copy_to(self, other: Any) -> None:
        assert list(other.shape) == self.get_shape()
        other.data[:] = self._held.data

    def copy_from(self, other: Any) -> None:
        assert list(other.shape) == self.get_shape()
        self._held.data[:] = other.data


class Compiled:
    """A model on a card, which makes tensors there."""

    def get_context(self) -> Compiled:
        return self

    def create_tensor(self, element: Any, shape: Any, properties: dict[str, Any]) -> OnCard:
        assert properties == {}
        return OnCard(element, shape)


@pytest.mark.parametrize("device", ["CPU", "GPU.0"])
def test_a_cache_that_grows_keeps_its_blocks(device: str) -> None:
    placement, compiled, element = Placement(device), Compiled(), ov.Type.f16
    numbers = np.random.default_rng(0).normal(size=(8, 2, 16, 4)).astype(np.float16)
    old = placement.cache(compiled, element, [8, 2, 16, 4])
    filled = ov.Tensor(element, ov.Shape([8, 2, 16, 4]))
    filled.data[:] = numbers
    if device == "CPU":
        old.data[:] = numbers
    else:
        assert isinstance(old, OnCard)
        old.copy_from(filled)
    new = placement.cache(compiled, element, [16, 2, 16, 4], old, 3)
    seen = ov.Tensor(element, ov.Shape([16, 2, 16, 4]))
    if device == "CPU":
        seen = new
    else:
        new.copy_to(seen)
    assert np.array_equal(seen.data[:3], numbers[:3])


def test_activations_share_a_scale_where_weights_do() -> None:
    """A small model whose weights say nothing does not round its activations unless asked to."""
    cpu, small, large = Placement("CPU"), 10**8, 10**9
    for group, weighs, weight_group, expected in (
        (-1, small, None, "0"),
        (-1, large, None, "32"),
        (-1, small, 64, "64"),
        (-1, large, 256, "256"),
        (32, small, 256, "32"),
        (0, large, 256, "0"),
    ):
        found = cpu.settings("auto", "f16", group, weighs, weight_group)
        assert found["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == expected
