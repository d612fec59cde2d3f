"""What the machine has, and the order of choice."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from localspec import devices
from localspec.devices import Chosen, Device
from localspec.errors import UnknownDevice

CARD = Device("torch", "cuda:0", "NVIDIA H100", "cuda", 80_000_000_000, 70_000_000_000, "570.1")
GAUDI = Device("torch", "hpu:0", "GAUDI3", "hpu", 128_000_000_000, 100_000_000_000)
DISCRETE = Device("openvino", "GPU.1", "Arc A770", "discrete", 16_000_000_000)
INTEGRATED = Device("openvino", "GPU.0", "Iris Xe", "integrated", 8_000_000_000)
CPU = Device("openvino", "CPU", "a processor", "cpu")
NPU = Device("npu", "NPU", "AI Boost", "npu")

Have = Callable[..., None]


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> Have:
    """Give this machine other devices."""

    def machine(*found: Device, torch: bool = True) -> None:
        monkeypatch.setattr(devices, "_cuda", lambda: [d for d in found if d.kind == "cuda" and torch])
        monkeypatch.setattr(devices, "_gaudi", lambda: [d for d in found if d.kind == "hpu" and torch])
        monkeypatch.setattr(devices, "_openvino", lambda: [d for d in found if d.engine != "torch"])
        monkeypatch.setattr(devices, "nvidia", lambda: any(d.kind == "cuda" for d in found))
        monkeypatch.setattr(devices, "gaudi", lambda: any(d.kind == "hpu" for d in found))
        library = devices.Library("json" if torch else "no_such_module", "pytest", "export")
        monkeypatch.setitem(devices.LIBRARIES, "torch", library)

    return machine


def named(chosen: Chosen) -> tuple[str, str]:
    return chosen.engine, chosen.device


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ((CPU, INTEGRATED, DISCRETE, GAUDI, CARD), ("torch", "cuda:0")),
        ((CPU, INTEGRATED, DISCRETE, GAUDI), ("torch", "hpu:0")),
        ((CPU, INTEGRATED, DISCRETE), ("openvino", "GPU.1")),
        ((CPU, INTEGRATED, NPU), ("openvino", "GPU.0")),
        ((CPU, NPU), ("openvino", "CPU")),
        ((CPU,), ("openvino", "CPU")),
    ],
)
def test_the_order_of_choice(have: Have, there: tuple[Device, ...], expected: tuple[str, str]) -> None:
    have(*there)
    chosen = devices.choose()
    assert named(chosen) == expected
    assert chosen.reason


def test_a_card_that_is_too_small_is_passed_over_with_the_reason(have: Have) -> None:
    have(CPU, INTEGRATED, CARD)
    chosen = devices.choose(fits=lambda device: device.kind != "cuda")
    assert named(chosen) == ("openvino", "GPU.0")
    assert "the model does not fit" in chosen.reason


def test_a_card_without_torch_names_the_command_that_brings_it(have: Have) -> None:
    have(CPU, CARD, torch=False)
    chosen = devices.choose()
    assert named(chosen) == ("openvino", "CPU")
    assert "pip install 'localspec[export]'" in chosen.reason


@pytest.mark.parametrize(
    ("device", "engine"),
    [
        ("CPU", "openvino"),
        ("GPU.1", "openvino"),
        ("AUTO:GPU,CPU", "openvino"),
        ("cuda:1", "torch"),
        ("hpu", "torch"),
        ("mps", "torch"),
        ("NPU", "npu"),
    ],
)
def test_a_device_that_is_asked_for_brings_its_engine(have: Have, device: str, engine: str) -> None:
    have(CPU, CARD)
    assert named(devices.choose(device)) == (engine, device)


def test_an_unknown_device_names_those_there_are(have: Have) -> None:
    have(CPU, CARD)
    with pytest.raises(UnknownDevice, match="no device `TPU`") as caught:
        devices.choose("TPU")
    assert "`CPU`" in (caught.value.hint or "")


def test_this_machine_is_described() -> None:
    found = json.loads(json.dumps(devices.as_values()))
    assert list(found) == ["cpu", "devices", "engines", "chosen", "notes"]
    assert found["cpu"]["cores"] >= 1
    assert 0 < found["cpu"]["free"] <= found["cpu"]["memory"]
    assert found["cpu"]["model"]
    assert "CPU" in [device["name"] for device in found["devices"] if device["engine"] == "openvino"]
    assert found["engines"]["openvino"]["installed"]
    assert found["chosen"]["engine"] in found["engines"]


def test_where_llama_cpp_may_be_faster_it_is_said(have: Have, monkeypatch: pytest.MonkeyPatch) -> None:
    have(CPU)
    for vector, said in (("AVX2", True), ("AVX-512 VNNI", False)):
        monkeypatch.setattr(devices, "_vector", lambda vector=vector: vector)
        notes = devices.as_values()["notes"]
        assert any("`localspec tune MODEL`" in note for note in notes) == said


def test_an_engine_that_is_not_installed_names_its_extra() -> None:
    library = devices.Library("no_such_module", "no-such-module", "gguf")
    assert library.version is None
    assert library.install == "pip install 'localspec[gguf]'"
