"""Releases the pages of mapped weights that OpenVINO has copied."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localspec.devices import trim_memory

EVERY = 0.1  # seconds between two sweeps while a file is read
DONT_NEED = 4  # MADV_DONTNEED
MAPS = Path("/proc/self/maps")

Span = tuple[int, int]  # of addresses


@contextmanager
def read_once(file: Path) -> Iterator[None]:
    """Release the mapped pages of `file` while and after it is read; the kernel maps them again on access.

    OpenVINO maps a model's weights and packs copies of most of them in the first pass, so a model would take
    its memory twice. The caller holds what mapped the file: addresses that another mapping took over would
    lose what is there. Linux only; elsewhere, and without a mapping, this does nothing.
    """
    spans, done = _spans(file), threading.Event()

    def sweep() -> None:
        while not done.wait(EVERY):
            _drop(spans)

    trim_memory()
    sweeping = threading.Thread(target=sweep, daemon=True)
    sweeping.start()
    try:
        yield
    finally:
        done.set()
        sweeping.join()
        _drop(spans)
        trim_memory()


def _spans(file: Path) -> list[Span]:
    """Return the address ranges where `file`, which nobody writes, is mapped."""
    if not MAPS.exists():
        return []
    path, found = os.path.realpath(file), []
    for line in os.fsdecode(MAPS.read_bytes()).splitlines():
        if line.endswith(f" {path}"):
            start, _, end = line.partition(" ")[0].partition("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def _drop(spans: list[Span]) -> None:
    for start, end in spans:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), DONT_NEED)
