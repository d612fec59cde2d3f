"""A person at a terminal, who types and reads the screen."""

from __future__ import annotations

import os
import signal
import termios
import time
from pathlib import Path

import pyte
from command import SECONDS, Localspec, Terminal

COLUMNS, ROWS = 100, 40
ASKS, ANSWERS = "\x1b[?25l\x1b[0m\x1b[?7l", "\x1b[?2004l"  # the prompt is drawn for the first time, and ends
PASTES = "\x1b[?2004h"  # the terminal puts a paste in brackets from here on


class Person(Terminal):
    """The command on a terminal with an emulated screen."""

    def __init__(self, localspec: Localspec, *arguments: str, folder: Path, **more: str) -> None:
        self._screen = pyte.HistoryScreen(COLUMNS, ROWS, history=10_000)
        self._stream = pyte.Stream(self._screen)
        self._mark = 0  # the lines that were there when the prompt came
        super().__init__(localspec, *arguments, folder=folder, **more)

    def ready(self) -> str:
        """Wait for the prompt; return the new text above it."""
        self.until(ASKS)
        self.sees(lambda: self._cursor_line.startswith(">"))
        mark, self._mark = self._mark, len(self.lines())
        return "\n".join(self.lines()[mark:-1])

    def say(self, text: str, end: str = "\r") -> str:
        """Type at the prompt and return the text up to the next one, without the typed text."""
        self.type(text + end)
        self.until(ANSWERS)
        return self.ready()

    def begin(self, text: str) -> None:
        """Type at the prompt, and do not wait for the answer."""
        self.type(text + "\r")
        self.until(ANSWERS)

    def paste(self, text: str) -> None:
        """Paste as a terminal does: in brackets if it was told to."""
        bracketed = self.shown.rfind(PASTES) > self.shown.rfind(ANSWERS)
        begin, end = ("\x1b[200~", "\x1b[201~") if bracketed else ("", "")
        self.type(f"{begin}{text}{end}".replace("\n", "\r"))

    def stop_and_go_on(self) -> None:
        """Press Ctrl-Z and type `fg` in a shell, which leaves its own settings of the terminal."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)
        settings = termios.tcgetattr(self._ours)
        settings[3] |= termios.ECHO | termios.ICANON
        termios.tcsetattr(self._ours, termios.TCSANOW, settings)
        os.kill(self.process.pid, signal.SIGCONT)

    @property
    def echoes(self) -> bool:
        """Return whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)

    def leave(self) -> int:
        """Press Ctrl-D and return the exit code."""
        self.type("\x04")
        return self.end()

    def sees(self, wanted: object) -> None:
        """Wait until a text is on the screen, or a function returns true."""
        end = time.monotonic() + SECONDS
        while not (wanted() if callable(wanted) else str(wanted) in self.text()):
            assert time.monotonic() < end, f"no {wanted!r} in {self.text()}"
            assert self._more(), f"it ended before {wanted!r}: {self.text()}"

    def text(self) -> str:
        """Return the text on the screen and in the scrollback."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return all lines down to the cursor."""
        gone = ["".join(line[at].data for at in range(COLUMNS)) for line in self._screen.history.top]
        shown = [*gone, *self._screen.display[: self._screen.cursor.y + 1]]
        return [line.rstrip() for line in shown]

    def row(self, number: int) -> str:
        """Return a row of the screen."""
        return str(self._screen.display[number]).rstrip()

    def colours(self, text: str) -> set[str]:
        """Return the colours of a text on the screen."""
        for row, line in enumerate(self._screen.display):
            if (at := line.find(text)) >= 0:
                return {self._screen.buffer[row][at + one].fg for one in range(len(text))}
        raise AssertionError(f"no {text!r} in {self.text()}")

    @property
    def _cursor_line(self) -> str:
        return str(self._screen.display[self._screen.cursor.y])

    def _more(self) -> bool:
        at = len(self.shown)
        more = super()._more()
        self._stream.feed(self.shown[at:])
        return more
