"""Keys and pastes that come while nothing asks for them: they wait for the next prompt.

This file imports nothing large, so that it reads from the first moment on.
"""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from localspec.cli import console

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

PASTES_ON, PASTES_OFF = "\x1b[?2004h", "\x1b[?2004l"
PASTE_BEGINS, PASTE_ENDS = b"\x1b[200~", b"\x1b[201~"
QUIET = 0.2  # seconds without a byte after which the rest of a paste no longer comes
LAST_LOOK = 0.02  # seconds without a byte before the terminal goes back to the shell
BACKGROUND = 0.2  # seconds between two looks whether the process is in the foreground again
SIZE = 65_536  # bytes of a read

_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]?|O.|.?)", re.S)
_CUT_SEQUENCE = re.compile(rb"\x1b(\[[0-9;]*|O)?\Z")


def is_capable() -> bool:
    """Return whether stdin is a terminal that can edit a line."""
    return sys.stdin.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class Keyboard:
    """Reads the terminal on stdin while nothing else does; Ctrl-C stays a signal.

    Within the `with` block nothing that is typed is shown, a paste comes in its brackets, and a thread takes
    each byte, because the system's own buffer has room for 4,096. After the block the terminal is as before,
    and what was left is dropped. A keyboard that is not `wanted`, or has no capable terminal, does nothing.
    """

    def __init__(self, wanted: bool = False) -> None:
        self._active = wanted and termios is not None and is_capable()
        self._bytes = b""
        self._before: list[Any] = []  # the settings of the terminal
        self._reader: threading.Thread | None = None
        self._wake = (-1, -1)  # a pipe that ends the reader

    def __enter__(self) -> Keyboard:
        """Begin to read."""
        if self._active:
            self._before = termios.tcgetattr(0)
            try:
                self._begin()
                signal.signal(signal.SIGCONT, self._go_on)
            except BaseException:  # Ctrl-C, or the end by a signal
                self.__exit__()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        """Give the terminal back; say what is dropped."""
        if not self._active:
            return
        try:
            signal.signal(signal.SIGCONT, signal.SIG_DFL)
            self._stop()
            if _in_foreground():
                console.control(PASTES_OFF)
            self._settle()
            while self._has_bytes(LAST_LOOK) and self._draw():
                pass
        finally:
            self._active = False
            self._set(self._before, termios.TCSAFLUSH)
            self._say_dropped()

    @contextmanager
    def lent(self, *, as_before: bool = False) -> Iterator[None]:
        """Let the block read the terminal, in its settings from before if wanted."""
        if not self._active:
            yield
            return
        self._stop()
        if as_before:
            self._set(self._before, termios.TCSANOW)
        try:
            yield
        finally:
            self._begin()

    def take(self) -> str:
        """Return what waits, and let it wait no longer; only within `lent`."""
        self._settle()
        taken, self._bytes = self._bytes, b""
        return taken.decode("utf-8", "replace")

    def give_back(self, typed: str) -> None:
        """Let text that was read too early wait; only within `lent`."""
        self._bytes = typed.encode("utf-8", "surrogateescape") + self._bytes

    def gather(self) -> None:
        """Let all that was typed so far wait; only within `lent`."""
        self._settle()
        while self._active and self._has_bytes(0) and self._draw():
            pass

    def drop(self) -> None:
        """Drop what waits, and say so."""
        with self.lent():
            self.gather()
            self._say_dropped()

    def _say_dropped(self) -> None:
        if count := lines(self.take()):
            console.say(f"Dropped what was typed meanwhile: {count:,} line{'s' * (count > 1)}")

    def _begin(self) -> None:
        self._prepare()
        self._wake = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(self._wake[0],), daemon=True)
        self._reader.start()

    def _go_on(self, number: int, frame: Any) -> None:
        """Prepare the terminal again after Ctrl-Z: the shell has used it."""
        if self._reader is not None:
            self._prepare()

    def _prepare(self) -> None:
        if not _in_foreground():
            return
        flags = list(self._before)
        flags[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
        flags[3] = flags[3] & ~(termios.ICANON | termios.ECHO | termios.IEXTEN) | termios.NOFLSH
        flags[6] = list(flags[6])
        flags[6][termios.VMIN], flags[6][termios.VTIME] = 1, 0
        self._set(flags, termios.TCSANOW)
        console.control(PASTES_ON)

    def _set(self, settings: list[Any], when: int) -> None:
        if _in_foreground():
            with suppress(termios.error):  # it was closed
                termios.tcsetattr(0, when, settings)

    def _stop(self) -> None:
        if self._reader is not None:
            os.write(self._wake[1], b".")
            self._reader.join()
            self._reader = None
            for end in self._wake:
                os.close(end)

    def _read(self, wake: int) -> None:
        """Read until `wake` has a byte, or the terminal is closed."""
        while wake not in (ready := select.select([0, wake], [], [])[0]):
            if not _in_foreground():
                if select.select([wake], [], [], BACKGROUND)[0]:
                    return
            elif ready and not self._draw():
                return

    def _draw(self) -> bool:
        """Add what has come; return whether more can come."""
        try:
            new = os.read(0, SIZE)
        except OSError:
            return False
        self._bytes += new
        return bool(new)

    def _has_bytes(self, seconds: float) -> bool:
        return bool(select.select([0], [], [], seconds)[0]) and _in_foreground()

    def _settle(self) -> None:
        """Wait for the rest of a paste, a key or a character."""
        while self._active and is_cut(self._bytes) and self._has_bytes(QUIET) and self._draw():
            pass


def _in_foreground() -> bool:
    """Return whether the terminal is the process's: one in the background would be stopped for using it."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return True


def is_cut(typed: bytes) -> bool:
    """Return whether a paste, a key or a character has begun and not ended."""
    if typed.rfind(PASTE_BEGINS) > typed.rfind(PASTE_ENDS) or _CUT_SEQUENCE.search(typed):
        return True
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(typed[-4:])
    return bool(decoder.getstate()[0])


def lines(typed: str) -> int:
    """Return the number of lines in typed text, without the keys that write nothing."""
    text = _SEQUENCE.sub("", typed).replace("\r\n", "\n").replace("\r", "\n").strip()
    return text.count("\n") + 1 if text else 0
