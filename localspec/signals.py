"""Keep Ctrl-C from crashing OpenVINO on processors with AMX.

Its CPU plug-in sets an alternate signal stack on the thread that loads it, and may free the stack on another
thread; a signal to the first thread then kills the process. The usual stack is large enough.
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
    """Restore this thread's signal stack after the block; does nothing on systems other than Linux."""
    if not sys.platform.startswith("linux"):
        yield
        return
    library, before = ctypes.CDLL(None), _Stack()
    library.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        library.sigaltstack(ctypes.byref(before), None)
