"""Ctrl-C beside OpenVINO on processors with AMX: its CPU plug-in gives signals a stack of its own.

The plug-in sets that stack for the thread that loads it, and frees it when it goes, on whichever thread that
is; a signal to the first thread then kills the process. The usual stack has room enough.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Stack(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Leave this thread's stack for signals as it was before; Linux only, elsewhere nothing happens."""
    if not sys.platform.startswith("linux"):
        yield
        return
    library, before = ctypes.CDLL(None), _Stack()
    library.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        library.sigaltstack(ctypes.byref(before), None)
