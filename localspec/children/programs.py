"""Start programs so that they end with localspec, and stop them with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil

ROOT = Path(os.path.abspath(os.sep))  # a working directory that holds no program's configuration
WAIT = 5.0  # seconds that a killed process has to go
SAFE = {"PYTHONSAFEPATH": "1"}  # no Python that the program starts imports from the working directory

_GUARD = str(Path(__file__).with_name("guard.py"))


def python(*arguments: str) -> list[str]:
    """Return the command line of this Python, importing nothing from the working directory."""
    return [sys.executable, "-P", *arguments]


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command line that runs `command` and ends it with this process, even one that is killed.

    It belongs in a session of its own. On Windows it is `command` itself.
    """
    if os.name != "posix":
        return list(command)
    return [sys.executable, "-I", "-S", _GUARD, str(os.getpid()), *command]


def start(command: Sequence[str], **options: Any) -> Any:
    """Start a program in its own session; it ends with this process. `options` are those of Popen.

    Returns the subprocess.Popen of its guard, whose exit code is the program's, 127 for an unknown program.
    On Windows, which has no guard, that raises OSError.
    """
    return subprocess.Popen(guarded(command), start_new_session=True, **options)


def become(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Be another program from here on: it has this process's terminal and signals, and its exit code is ours.

    Raises OSError for an unknown program. Windows knows no such thing: the program runs until its end.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if os.name != "posix":
        sys.exit(subprocess.run(list(command), env=dict(env), check=False).returncode)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; programs expect not to
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(command[0], list(command), dict(env))


def run(
    command: Sequence[str],
    *,
    input: bytes | None = None,
    timeout: float | None = None,
    stderr: int = subprocess.PIPE,
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end; return its exit code and its output.

    The exit code is 127 if there is no such program. Raises subprocess.TimeoutExpired; any exception, such as
    Ctrl-C, stops the program.
    """
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    with start(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            stop(process)
            raise
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def program_of(process: subprocess.Popen[Any]) -> int:
    """Return the process id of the program that a guard runs."""
    if os.name != "posix":
        return process.pid
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children():
            return child.pid
    return process.pid


def stop(process: subprocess.Popen[Any]) -> None:
    """Kill a program and all that it started, except for daemons that have detached themselves."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        children = []
    if os.name == "posix":
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    for child in children:  # some start their own session
        with suppress(psutil.Error):
            child.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(WAIT)
