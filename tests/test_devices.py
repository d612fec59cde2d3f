"""The devices of a machine, and the order in which an engine is chosen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec import devices
from localspec.bench import report
from localspec.cli.machine.devices import format_device
from localspec.devices import Chosen, Device, accelerators, hardware
from localspec.errors import UnknownDevice
from localspec.installation import install_command
from localspec.state import tuned

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

    def machine(*given: Device, torch: bool = True) -> None:
        def set_devices(function: str, chosen: list[Device]) -> None:
            monkeypatch.setattr(accelerators, function, lambda: chosen)

        kinds = {device.kind for device in given}
        set_devices("cuda_devices", [device for device in given if device.kind == "cuda" and torch])
        set_devices("gaudi_devices", [device for device in given if device.kind == "hpu" and torch])
        set_devices("openvino_devices", [device for device in given if device.engine != "torch"])
        monkeypatch.setattr(accelerators, "has_nvidia_driver", lambda: "cuda" in kinds)
        monkeypatch.setattr(accelerators, "has_gaudi_driver", lambda: "hpu" in kinds)
        library = devices.EngineLibrary("json" if torch else "no_such_module", "pytest", "export")
        monkeypatch.setitem(devices.LIBRARIES, "torch", library)

    return machine


def named(chosen: Chosen) -> tuple[str, str]:
    return chosen.engine, chosen.device


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        ((CPU, INTEGRATED, DISCRETE, GAUDI, CARD), ("torch", "cuda:0")),
        ((CPU, INTEGRATED, DISCRETE, GAUDI), ("torch", "hpu:0")),
        ((CPU, INTEGRATED, DISCRETE), ("openvino", "GPU.1")),
        ((CPU, INTEGRATED, NPU), ("openvino", "GPU.0")),
        ((CPU, NPU), ("openvino", "CPU")),
        ((CPU,), ("openvino", "CPU")),
    ],
)
def test_the_order_of_choice(have: Have, available: tuple[Device, ...], expected: tuple[str, str]) -> None:
    have(*available)
    chosen = devices.choose()
    assert named(chosen) == expected
    assert chosen.reason


def test_a_card_that_is_too_small_is_skipped_with_the_reason(have: Have) -> None:
    have(CPU, INTEGRATED, CARD)
    chosen = devices.choose(fits=lambda device: device.kind != "cuda")
    assert named(chosen) == ("openvino", "GPU.0")
    assert "the model does not fit" in chosen.reason


def test_a_card_without_torch_names_the_install_command(have: Have) -> None:
    have(CPU, CARD, torch=False)
    chosen = devices.choose()
    assert named(chosen) == ("openvino", "CPU")
    assert install_command("export") in chosen.reason


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
def test_a_requested_device_chooses_its_engine(have: Have, device: str, engine: str) -> None:
    have(CPU, CARD)
    assert named(devices.choose(device)) == (engine, device)


def test_an_unknown_device_lists_the_available_ones(have: Have) -> None:
    have(CPU, CARD)
    with pytest.raises(UnknownDevice, match="Unknown device `TPU`") as caught:
        devices.choose("TPU")
    assert "`CPU`" in (caught.value.hint or "")


def test_this_machine_is_described() -> None:
    values = json.loads(json.dumps(devices.as_values()))
    assert list(values) == ["cpu", "devices", "engines", "chosen", "notes"]
    assert values["cpu"]["cores"] >= 1
    assert 0 < values["cpu"]["free"] <= values["cpu"]["memory"]
    assert values["cpu"]["model"]
    assert "CPU" in [device["name"] for device in values["devices"] if device["engine"] == "openvino"]
    assert values["engines"]["openvino"]["installed"]
    assert values["chosen"]["engine"] in values["engines"]


@pytest.mark.parametrize(
    ("vector", "module", "said"),
    [("AVX2", "no_such_module", True), ("AVX2", "json", False), ("AVX-512 VNNI", "no_such_module", False)],
)
def test_a_note_says_when_to_install_llama_cpp(
    vector: str, module: str, said: bool, have: Have, monkeypatch: pytest.MonkeyPatch
) -> None:
    have(CPU)
    monkeypatch.setattr(hardware, "vector_instructions", lambda: vector)
    monkeypatch.setitem(devices.LIBRARIES, "llamacpp", devices.EngineLibrary(module, "pytest", "gguf"))
    notes = devices.as_values()["notes"]
    assert any(f"`auto` times both: {install_command('gguf')}" in note for note in notes) == said


def test_an_engine_that_is_not_installed_names_its_extra() -> None:
    library = devices.EngineLibrary("no_such_module", "no-such-module", "gguf")
    assert library.version is None
    assert library.install == install_command("gguf")


LISTED = b"""GPU-1a, NVIDIA H200, 143771, 580.159.03, 1980
GPU-2b, NVIDIA GeForce RTX 4060 Laptop GPU, 8188, 580.159.03, [N/A]
Unable to determine the device handle for GPU0000:65:00.0: Unknown Error
GPU-3c, NVIDIA GB10, [N/A], 580.159.03, 3003
"""


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return what lets `nvidia-smi` answer."""

    def answer(output: bytes, code: int = 0) -> None:
        accelerators.nvidia_cards.cache_clear()
        found = SimpleNamespace(returncode=code, stdout=output)
        monkeypatch.setattr(accelerators, "has_nvidia_driver", lambda: True)
        monkeypatch.setattr(accelerators.children, "run", lambda *_, **__: found)

    yield answer
    accelerators.nvidia_cards.cache_clear()


def test_cards_are_described_as_their_driver_lists_them(listed: Callable[..., None]) -> None:
    listed(LISTED)
    first, second = devices.nvidia_cards()
    assert first == ("GPU-1a", "NVIDIA H200", 143771 << 20, "580.159.03", 1980)
    assert (second.title, second.clock) == ("NVIDIA GeForce RTX 4060 Laptop GPU", None)
    listed(LISTED, code=9)
    assert devices.nvidia_cards() == ()


def test_a_report_and_a_tuned_setting_belong_to_a_card(
    listed: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    model: Any = SimpleNamespace(files_in=lambda _: None)
    keys = set()
    for driver in (b"580.1", b"590.2"):
        listed(LISTED.replace(b"580.159.03", driver))
        keys.add(tuned.key(model))
        cards = report.machine()["cards"]
        assert [card["driver"] for card in cards] == [driver.decode()] * 2
        assert "uuid" not in cards[0]
    listed(b"")
    assert report.machine()["cards"] == []
    assert len({*keys, tuned.key(model)}) == 3


def test_a_card_is_shown_with_its_clock() -> None:
    shown = format_device(asdict(replace(CARD, clock=1980)))
    assert shown == "NVIDIA H100 | 80.0 GB, 70.0 GB free | 1980 MHz | driver 570.1"
    assert "MHz" not in format_device(asdict(CARD))
