"""Errors, hints and statistics, written to stderr to keep stdout for data."""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from rich.status import Status

DELAY = 0.5  # seconds of silence before a status line appears
RED, CYAN, DIM, PLAIN = "\x1b[31;1m", "\x1b[36;1m", "\x1b[2m", "\x1b[0m"

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def coloured() -> bool:
    """Return whether stderr takes colours: it is a terminal, and NO_COLOR is not set."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """Return `text` in a colour where stderr takes one."""
    return f"{colour}{text}{PLAIN}" if coloured() else text


def printable(text: str) -> str:
    """Return text without the control characters that act on a terminal."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def say(line: str) -> None:
    """Print a line on stderr."""
    print(line, file=sys.stderr, flush=True)


def show(error: LocalspecError) -> None:
    """Print an error and its hint."""
    say(f"{paint('error', RED)}: {error.message}")
    if error.hint is not None:
        say(f"\n{paint('hint', CYAN)}: {error.hint}")


class Waiting:
    """A status line on stderr, if that is a terminal, from `show` until `clear`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._status: Status | None = None
        self._text = ""

    def show(self, text: str) -> None:
        """Set the text of the line, which appears after DELAY seconds."""
        self._text = text
        if self._status is not None:
            self._status.update(text)
        elif self._timer is None and sys.stderr.isatty():
            self._timer = threading.Timer(DELAY, self._begin)
            self._timer.daemon = True
            self._timer.start()

    def clear(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._status is not None:
                self._status.stop()
                self._status = None

    def _begin(self) -> None:
        from rich.console import Console

        with self._lock:
            if self._timer is not None:  # not cleared in the meantime
                self._status = Console(stderr=True).status(self._text)
                self._status.start()
