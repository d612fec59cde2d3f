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
from typing import Any

from localspec import children
from localspec.devices.libraries import LIBRARIES
from localspec.signals import signal_stack_kept

NVIDIA_PATHS = ("/proc/driver/nvidia/version", "/dev/dxg")  # Linux, and its subsystem on Windows
GAUDI_PATH = "/sys/module/habanalabs"


@dataclass(frozen=True, slots=True)
class Device:
    """A device that an engine can use; `name` is the value for `--device`, memory is in bytes."""

    engine: str
    name: str
    title: str
    kind: str  # cpu, integrated, discrete, npu, cuda, hpu
    memory: int | None = None
    free: int | None = None
    driver: str = ""


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
    driver = _nvidia_driver_version()
    devices = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        title = torch.cuda.get_device_name(index)
        devices.append(Device("torch", f"cuda:{index}", title, "cuda", total, free, driver))
    return devices


def _nvidia_driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        asked = children.run(command, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "" if asked.returncode else asked.stdout.decode("utf-8", "replace").split("\n")[0].strip()


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
