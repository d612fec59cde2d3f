"""No process outlives the one that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from localspec import children

# Starts a program that starts another, writes both process ids to a file, and waits.
PARENT = """
import subprocess, sys, time
from localspec import children
script = (
    "import os, subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
    "open(sys.argv[1] + '.new', 'w').write(f'{os.getpid()} {child.pid}');"
    "os.rename(sys.argv[1] + '.new', sys.argv[1]); time.sleep(600)"
)
children.start(children.python("-c", script, sys.argv[1]), stdin=subprocess.DEVNULL)
time.sleep(600)
"""
SECONDS = 60


def appeared(path: Path) -> str:
    end = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not appear"
        time.sleep(0.02)
    return path.read_text(encoding="utf-8")


def ended(pid: int) -> bool:
    """Wait until a process has ended."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_programs_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path / "ids")], stderr=subprocess.PIPE)
    found = [int(word) for word in appeared(tmp_path / "ids").split()]
    parent.send_signal(number)
    parent.communicate()
    assert [ended(pid) for pid in found] == [True, True]


def test_a_stopped_program_ends_with_its_children(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    process = children.start(children.python("-c", script), stdout=subprocess.PIPE)
    child = int(process.stdout.readline())
    children.stop(process)
    process.stdout.close()
    assert ended(child)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("code", [0, 3, -signal.SIGSEGV, -signal.SIGKILL])
def test_a_guard_ends_as_its_program_did(code: int) -> None:
    act = f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
    done = children.run(children.python("-c", f"import os, sys; print('out'); sys.stdout.flush(); {act}"))
    assert (done.returncode, done.stdout) == (code, b"out\n")


def test_input_reaches_the_program_and_a_limit_stops_it() -> None:
    assert children.run(["cat"], input=b"a\0b").stdout == b"a\0b"
    with pytest.raises(subprocess.TimeoutExpired):
        children.run(["sleep", "600"], timeout=0.2)
    assert children.run(["no-such-program"]).returncode == 127


def test_signals_reach_the_program() -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: exit(7))"
    script = f"import signal, time; {handler}; print(1, flush=True); time.sleep(600)"
    process = children.start(children.python("-c", script), stdout=subprocess.PIPE)
    process.stdout.readline()
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(SECONDS) == 7
    process.stdout.close()
