"""What this machine has, and which engine suits it.

Looking is cheap: a library is only asked for devices whose driver is there.
"""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localspec.errors import UnknownDevice
from localspec.signals import signal_stack_kept

AUTO = "auto"
NVIDIA = ("/proc/driver/nvidia/version", "/dev/dxg")  # the second: Windows' subsystem for Linux
GAUDI = "/sys/module/habanalabs"
PACKAGES = (
    *("localspec", "openvino", "llama-cpp-python", "torch", "transformers", "nncf"),
    *("tokenizers", "huggingface-hub", "numpy"),
)
SPARE = 400_000_000  # bytes that an engine takes beside weights and cache


@dataclass(frozen=True, slots=True)
class Library:
    """What an engine is made with: the module to import, its distribution, the extra that brings it."""

    module: str
    distribution: str
    extra: str | None = None

    @property
    def version(self) -> str | None:
        """The version that is installed, None when there is none."""
        try:
            return version(self.distribution) if find_spec(self.module) else None
        except (PackageNotFoundError, ImportError, ValueError):
            return None

    @property
    def install(self) -> str:
        """The command that brings it."""
        return f"pip install 'localspec[{self.extra}]'" if self.extra else "pip install localspec"


LIBRARIES = {
    "openvino": Library("openvino", "openvino"),
    "npu": Library("openvino", "openvino"),
    "llamacpp": Library("llama_cpp", "llama-cpp-python", "gguf"),
    "torch": Library("torch", "torch", "export"),
}


@dataclass(frozen=True, slots=True)
class Device:
    """A device that an engine can use: `name` is what `--device` takes, `memory` its bytes or None."""

    engine: str
    name: str
    title: str
    kind: str  # cpu, integrated, discrete, npu, cuda, hpu
    memory: int | None = None
    free: int | None = None
    driver: str = ""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor and the memory of this machine; bytes."""

    model: str
    cores: int
    threads: int
    vector: str
    memory: int
    free: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine, its device, and why."""

    engine: str
    device: str
    reason: str


def cpu() -> Cpu:
    """Describe the processor: its model, cores, the widest vectors it has, and memory."""
    import psutil

    memory = psutil.virtual_memory()
    threads = psutil.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or threads
    return Cpu(_name(), cores, threads, _vector(), memory.total, memory.available)


@functools.cache
def processor() -> str:
    """Name what decides how fast this machine calculates, and how it rounds: what is measured holds there."""
    return f"{_name()}, {_vector()}"


def free_memory() -> int:
    """Return the bytes that can be had without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


def all_devices() -> list[Device]:
    """List the devices that the installed engines can use."""
    return [*_openvino(), *_cuda(), *_gaudi()]


def choose(device: str | None = None, fits: Callable[[Device], bool] = lambda _: True) -> Chosen:
    """Return the engine for a model that every engine reads, and why.

    The order is: CUDA or Gaudi if the model `fits`, then OpenVINO's discrete GPU, its integrated GPU, the
    CPU. An NPU is taken only when `device` names it. Raises UnknownDevice for a device that is not there.
    """
    if device is not None:
        return _asked(device)
    passed: list[str] = []
    for kind in ("cuda", "hpu", "discrete", "integrated"):
        found = next((there for there in _of_kind(kind) if fits(there)), None)
        if found:
            return Chosen(found.engine, found.name, "; ".join([*passed, f"{found.title} is there"]))
        passed += _why_not(kind)
    return Chosen("openvino", "CPU", "; ".join(passed) or "no GPU that an installed engine can use")


def _asked(device: str) -> Chosen:
    family = device.split(":")[0].split(".")[0]
    reason = f"`{device}` was asked for"
    if family in ("cuda", "hpu", "mps"):
        return Chosen("torch", device, reason)
    if family in ("AUTO", "CPU", "GPU"):
        return Chosen("openvino", device, reason)
    if family == "NPU":
        return Chosen("npu", device, reason)
    names = dict.fromkeys(found.name for found in all_devices())
    raise UnknownDevice(device, names)


def _of_kind(kind: str) -> list[Device]:
    if kind == "cuda":
        return _cuda()
    if kind == "hpu":
        return _gaudi()
    return [found for found in _openvino() if found.kind == kind]


def _why_not(kind: str) -> Iterator[str]:
    """Say why a card that is there is not chosen; nothing where there is none."""
    there = nvidia() if kind == "cuda" else gaudi() if kind == "hpu" else False
    if not there:
        return
    name = "an NVIDIA card" if kind == "cuda" else "a Gaudi"
    if LIBRARIES["torch"].version is None:
        yield f"{name} is there, and torch is not installed: {LIBRARIES['torch'].install}"
    elif not _of_kind(kind):
        yield f"{name} is there, and torch cannot use it"
    else:
        yield f"{name} is there, and the model does not fit"


def nvidia() -> bool:
    """Tell whether an NVIDIA driver is there."""
    return any(map(Path.exists, map(Path, NVIDIA))) or shutil.which("nvidia-smi") is not None


def gaudi() -> bool:
    """Tell whether a Gaudi driver is there."""
    return Path(GAUDI).exists()


@functools.cache
@signal_stack_kept()
def _openvino() -> list[Device]:
    if LIBRARIES["openvino"].version is None:
        return []
    import openvino as ov

    core = ov.Core()
    found = []
    for name in core.available_devices:
        family = name.split(".")[0]
        kind = {"CPU": "cpu", "NPU": "npu"}.get(family, "discrete")
        if family == "GPU" and "integrated" in str(_property(core, name, "DEVICE_TYPE")).lower():
            kind = "integrated"
        engine = "npu" if family == "NPU" else "openvino"
        memory = _property(core, name, "GPU_DEVICE_TOTAL_MEM_SIZE") if family == "GPU" else None
        driver = _property(core, name, "NPU_DRIVER_VERSION") if family == "NPU" else None
        title = str(_property(core, name, "FULL_DEVICE_NAME") or name)
        found.append(Device(engine, name, title, kind, memory, None, "" if driver is None else str(driver)))
    return found


def _property(core: Any, device: str, name: str) -> Any:
    """Ask OpenVINO for a property; None where the device has no such one."""
    try:
        return core.get_property(device, name)
    except RuntimeError:
        return None


def _cuda() -> list[Device]:
    if not nvidia() or LIBRARIES["torch"].version is None:
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    driver = _nvidia_driver()
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        title = torch.cuda.get_device_name(index)
        found.append(Device("torch", f"cuda:{index}", title, "cuda", total, free, driver))
    return found


def _nvidia_driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.split("\n")[0].strip()


def _gaudi() -> list[Device]:
    """List the Gaudi cards; not run on hardware."""
    if not gaudi() or LIBRARIES["torch"].version is None or find_spec("habana_frameworks") is None:
        return []
    import habana_frameworks.torch.hpu as hpu

    if not hpu.is_available():
        return []
    driver = (Path(GAUDI) / "version").read_text().strip() if (Path(GAUDI) / "version").exists() else ""
    found = []
    for index in range(hpu.device_count()):
        free, total = hpu.mem_get_info(index)
        found.append(Device("torch", f"hpu:{index}", hpu.get_device_name(index), "hpu", total, free, driver))
    return found


def _name() -> str:
    """Return the processor's name as its maker writes it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _vector() -> str:
    """Name the widest vector instructions that numpy finds, and what helps with int8 and bfloat16."""
    try:
        from numpy._core._multiarray_umath import __cpu_features__ as has
    except ImportError:  # numpy 1
        from numpy.core._multiarray_umath import __cpu_features__ as has
    named = {"AVX512F": "AVX-512", "AVX2": "AVX2", "SVE": "SVE", "NEON": "NEON"}
    widest = next((title for flag, title in named.items() if has.get(flag)), "")
    extras = {"AVX512VNNI": "VNNI", "AVX512_SPR": "FP16", "ASIMDDP": "dot product"}
    return " ".join([widest, *(title for flag, title in extras.items() if has.get(flag))]).strip()


def versions() -> dict[str, str | None]:
    """Return the versions of Python, this system and the packages that matter; None for a missing one."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    return found | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _notes(chosen: Chosen) -> list[str]:
    """Say why a card is not taken, and where another engine may be the better one (docs/performance.md)."""
    if chosen.engine == "torch":
        return []
    found = [*_why_not("cuda"), *_why_not("hpu")]
    if chosen.device == "CPU" and _vector() == "AVX2":
        found.append(
            "without AVX-512 llama.cpp may be faster than OpenVINO: `localspec tune MODEL` measures both"
        )
        if LIBRARIES["llamacpp"].version is None:
            found.append(f"llama.cpp is not installed: {LIBRARIES['llamacpp'].install}")
    return found


def as_values() -> dict[str, Any]:
    """Return all of it as plain values: the machine, the devices, the engines, and what would be chosen."""
    engines = {
        name: {"installed": library.version, "install": None if library.version else library.install}
        for name, library in LIBRARIES.items()
    }
    chosen = choose()
    return {
        "cpu": asdict(cpu()),
        "devices": [asdict(found) for found in all_devices()],
        "engines": engines,
        "chosen": asdict(chosen),
        "notes": _notes(chosen),
    }
