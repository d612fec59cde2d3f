"""Ctrl-C after OpenVINO's plug-in was loaded here and freed elsewhere: an error to catch, not the end."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, threading, time
import openvino as ov
from localspec.signals import signal_stack_kept

held = []
with signal_stack_kept():
    core = ov.Core()
    held.append(core)
    core.get_property("CPU", "FULL_DEVICE_NAME")
del core
freeing = threading.Thread(target=held.clear)
freeing.start()
freeing.join()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_is_an_interrupt() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the call is Linux's")
def test_the_stack_for_signals_stays_as_it_was() -> None:
    import ctypes

    from localspec.signals import _Stack, signal_stack_kept

    library, before, after = ctypes.CDLL(None), _Stack(), _Stack()
    memory = ctypes.create_string_buffer(1 << 17)
    library.sigaltstack(None, ctypes.byref(before))
    with signal_stack_kept():
        other = _Stack(ctypes.addressof(memory), 0, len(memory))
        assert library.sigaltstack(ctypes.byref(other), None) == 0
    library.sigaltstack(None, ctypes.byref(after))
    assert (after.pointer, after.flags) == (before.pointer, before.flags)
