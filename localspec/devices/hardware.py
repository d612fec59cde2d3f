"""The processor and the memory of this machine."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor, and the memory of this machine in bytes."""

    model: str
    cores: int
    threads: int
    vector: str
    memory: int
    free: int


def cpu() -> Cpu:
    """Describe the processor: its model, cores, widest vector instructions, and the memory."""
    import psutil

    memory = psutil.virtual_memory()
    threads = psutil.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or threads
    return Cpu(_model_name(), cores, threads, vector_instructions(), memory.total, memory.available)


@functools.cache
def processor() -> str:
    """Return the model and the vector instructions, on which speeds and rounding depend."""
    return f"{_model_name()}, {vector_instructions()}"


def free_memory() -> int:
    """Return the bytes that are available without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


def trim_memory() -> None:
    """Return freed memory to the system, where the C library keeps it and can (glibc)."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def _model_name() -> str:
    """Return the processor's name as its maker writes it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def vector_instructions() -> str:
    """Return the widest vector instructions that numpy finds, and those for int8 and half precision."""
    try:
        from numpy._core._multiarray_umath import __cpu_features__ as has
    except ImportError:  # numpy 1
        from numpy.core._multiarray_umath import __cpu_features__ as has
    names = {"AVX512F": "AVX-512", "AVX2": "AVX2", "SVE": "SVE", "NEON": "NEON"}
    widest = next((title for flag, title in names.items() if has.get(flag)), "")
    extras = {"AVX512VNNI": "VNNI", "AVX512_SPR": "FP16", "ASIMDDP": "dot product"}
    return " ".join([widest, *(title for flag, title in extras.items() if has.get(flag))]).strip()
