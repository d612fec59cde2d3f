"""Describe this machine as plain values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from localspec.devices import accelerators, hardware
from localspec.devices.choice import Chosen, choose, why_skipped
from localspec.devices.libraries import LIBRARIES


def as_values() -> dict[str, Any]:
    """Return the processor, the devices, the engines, and the engine that would be chosen."""
    engines = {
        name: {"installed": library.version, "install": None if library.version else library.install}
        for name, library in LIBRARIES.items()
    }
    chosen = choose()
    return {
        "cpu": asdict(hardware.cpu()),
        "devices": [asdict(device) for device in accelerators.all_devices()],
        "engines": engines,
        "chosen": asdict(chosen),
        "notes": _notes(chosen),
    }


def _notes(chosen: Chosen) -> list[str]:
    """Say why a card is not chosen, and when to install llama.cpp (docs/performance.md)."""
    if chosen.engine == "torch":
        return []
    notes = [*why_skipped("cuda"), *why_skipped("hpu")]
    slow = chosen.device == "CPU" and hardware.vector_instructions() == "AVX2"
    if slow and LIBRARIES["llamacpp"].version is None:
        install = LIBRARIES["llamacpp"].install
        notes.append(f"without AVX-512 llama.cpp may be faster than OpenVINO; `auto` times both: {install}")
    return notes
