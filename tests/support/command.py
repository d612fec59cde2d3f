"""The real command as a process: run to its end, started, or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models

MODEL = models.SMALL
COMMAND = (sys.executable, "-m", "localspec")
SECONDS = 900  # after which a process counts as hung

# Makes the terminal on stdin the controlling one, as a shell does, so that Ctrl-C reaches the command.
ON_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "localspec", *sys.argv[1:]])
"""
# Runs the command as a shell does, and prints its exit code, whether the terminal is as before, and what the
# shell gets to read.
ON_SHELL = """
import fcntl, json, os, select, signal, subprocess, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, lambda number, frame: None)
before = termios.tcgetattr(0)
code = subprocess.call([sys.executable, "-m", "localspec", *sys.argv[1:]])
same = termios.tcgetattr(0) == before
termios.tcsetattr(0, termios.TCSANOW, [*before[:3], before[3] & ~termios.ICANON, *before[4:]])
left = b""
while select.select([0], [], [], 1)[0]:
    left += os.read(0, 65536)
print("shell:", json.dumps([code, same, left.decode()]), flush=True)
"""
# Runs the command with a limit on the size of files, which acts like a full disk.
WITH_FILE_LIMIT = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
os.execv(sys.executable, [sys.executable, "-m", "localspec", *sys.argv[2:]])
"""


@dataclass(frozen=True)
class Ran:
    """The exit code and the output of a process."""

    code: int
    out: str
    err: str

    @property
    def values(self) -> dict[str, Any]:
        """The one line of JSON on stdout."""
        return self.values_with(0)

    def values_with(self, code: int) -> dict[str, Any]:
        """Return the one line of JSON on stdout of a command that ended with an exit code."""
        assert self.code == code, self.err
        assert self.out.count("\n") == 1
        found: dict[str, Any] = json.loads(self.out)
        return found

    def refused(self, code: int, *said: str) -> None:
        """Require one error and one hint with the given texts, no traceback and an empty stdout."""
        assert self.code == code, self.err
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert [sum(line.startswith(start) for line in lines) for start in ("error: ", "hint: ")] == [1, 1]
        told = self.err[self.err.index("error: ") :]
        assert all(text in told for text in said), told


class Localspec:
    """Starts the command with its own home and without the user's settings."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def environment(self, **more: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HF_", "LOCALSPEC"))
        }
        plain = {"COLUMNS": "100", "TERM": "xterm", "LOCALSPEC_HOME": str(self.home)}
        plain["LOCALSPEC_CONFIG"] = os.devnull  # not the settings of the user who runs the tests
        for name in ("NO_COLOR", "FORCE_COLOR", "PY_COLORS"):
            kept.pop(name, None)
        return kept | plain | more

    def run(self, *arguments: str, stdin: str = "", before: Sequence[str] = COMMAND, **more: str) -> Ran:
        done = subprocess.run(
            [*before, *arguments],
            input=stdin.encode(),
            capture_output=True,
            timeout=SECONDS,
            check=False,
            env=self.environment(**more),
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def chat(self, *arguments: str, **options: Any) -> Ran:
        return self.run("chat", MODEL, *arguments, **options)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
        )

    def names(self) -> set[str]:
        """List the models and everything else in their folder, except locks."""
        models = self.home / "models"
        return (
            {path.name for path in models.iterdir() if path.suffix != ".lock"} if models.is_dir() else set()
        )


class Terminal:
    """A process on a pseudo terminal of 100 columns and 40 rows."""

    program = ON_TERMINAL

    def __init__(
        self, localspec: Localspec, *arguments: str, folder: Path | None = None, **more: str
    ) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, 100))
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.program, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=localspec.environment(**more),
            cwd=folder,
        )
        os.close(theirs)
        self.shown = ""
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C, once the terminal makes a signal of it, not a key."""
        while not termios.tcgetattr(self._ours)[3] & termios.ISIG:
            time.sleep(0.001)
        self.type("\x03")

    def until(self, sign: str) -> str:
        """Read until `sign` appears after the text of the last call; return the text up to it."""
        end = time.monotonic() + SECONDS
        while (at := self.shown.find(sign, self._seen)) < 0:
            assert time.monotonic() < end, f"no {sign!r} in {self.shown[self._seen :]!r}"
            assert self._more(), f"it ended before {sign!r}: {self.shown[self._seen :]!r}"
        start, self._seen = self._seen, at + len(sign)
        return self.shown[start : self._seen]

    def end(self) -> int:
        """Read to the end and return the exit code."""
        while self._more():
            pass
        return self.process.wait(SECONDS)

    def hang_up(self) -> int:
        """Close the terminal as a window is closed, and return the exit code of the process."""
        os.close(self._ours)
        self._ours = os.open(os.devnull, os.O_RDWR)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _more(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], SECONDS)
        piece = b""
        with suppress(OSError):  # Linux says EIO when the other side is closed
            piece = os.read(self._ours, 4096) if ready else b""
        self.shown += piece.decode("utf-8", "replace")
        return bool(piece)
