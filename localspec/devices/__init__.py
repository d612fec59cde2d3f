"""The hardware of this machine, and the engine that suits it."""

from localspec.devices.accelerators import Device, all_devices, has_nvidia_driver, nvidia_cards
from localspec.devices.choice import AUTO, Chosen, choose
from localspec.devices.hardware import (
    Cpu,
    cpu,
    free_memory,
    processor,
    trim_memory,
    vector_instructions,
)
from localspec.devices.libraries import LIBRARIES, EngineLibrary, versions
from localspec.devices.report import as_values

ENGINE_OVERHEAD = 400_000_000  # bytes that an engine takes beside weights and KV cache

__all__ = [
    "AUTO",
    "ENGINE_OVERHEAD",
    "LIBRARIES",
    "Chosen",
    "Cpu",
    "Device",
    "EngineLibrary",
    "all_devices",
    "as_values",
    "choose",
    "cpu",
    "free_memory",
    "has_nvidia_driver",
    "nvidia_cards",
    "processor",
    "trim_memory",
    "vector_instructions",
    "versions",
]
