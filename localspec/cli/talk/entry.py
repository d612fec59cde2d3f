"""Reading what a user types: history, several lines, an editor, and completion."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.cli.talk.terminal.keyboard import Keyboard, is_capable

if TYPE_CHECKING:
    from localspec.cli.talk.terminal.line import Line

QUOTES = '"""'
PROMPT = "> "
MAX_COMPLETIONS = 100

Complete = Callable[[str], Iterable[str]]  # the line so far -> completions of its last word

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Entry:
    """Reads a line, or several between triple quotes.

    A terminal that can do it has a history in the file `history`, Ctrl-G for `$EDITOR`, and Tab for
    `complete`. Keys that `keyboard` has read in the meantime wait in the line.
    """

    def __init__(self, history: Path, complete: Complete, keyboard: Keyboard | None = None) -> None:
        self._keyboard = keyboard or Keyboard()
        self._line = _line(history, complete) if is_capable() else None

    def read(self, default: str = "") -> str:
        """Return the typed text; raises EOFError at the end of the input, KeyboardInterrupt for Ctrl-C."""
        if self._line is None:
            return unquoted(without_controls(_read_plain()))
        with self._keyboard.lent():
            try:
                text = self._line.read(PROMPT, self._keyboard.take(), default)
            finally:
                self._keyboard.give_back(self._line.rest())
        return without_controls(self._line.folds.unfold(unquoted(text)))


def _line(history: Path, complete: Complete) -> Line:
    from localspec.cli.talk.terminal.line import Line

    return Line(history, complete, unfinished)


def without_controls(text: str) -> str:
    """Return typed or pasted text without control characters, which no question needs."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def each_text(entry: Entry, default: Callable[[], str] = str) -> Iterator[str]:
    """Yield each text that is typed, until the end of the input; `default` returns how a line begins."""
    while True:
        try:
            text = entry.read(default())
        except KeyboardInterrupt:
            console.say("Ctrl-D leaves")
            continue
        except EOFError:
            console.say("")
            return
        yield text


@contextmanager
def no_echo() -> Iterator[None]:
    """Turn the echo off: keys that are pressed during an answer would appear in it. They are read later."""
    try:
        import termios

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        yield
        return
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def unquoted(text: str) -> str:
    """Return a text without the triple quotes around it."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")
    return text


def unfinished(text: str) -> bool:
    """Return whether a text opens triple quotes that it does not close."""
    stripped = text.strip()
    return stripped.startswith(QUOTES) and (len(stripped) < 2 * len(QUOTES) or not stripped.endswith(QUOTES))


def paths(start: str) -> Iterable[str]:
    """Return the files and folders whose path begins with `start`."""
    folder, _, name = start.rpartition("/")
    place = Path(f"{folder}/" if folder or start.startswith("/") else ".").expanduser()
    try:
        entries = sorted(place.iterdir(), key=lambda path: path.name)
    except OSError:
        return []
    shown = [
        path for path in entries if path.name.startswith(name) and (name or not path.name.startswith("."))
    ]
    head = f"{folder}/" if folder or start.startswith("/") else ""
    return [f"{head}{path.name}{'/' if path.is_dir() else ''}" for path in shown[:MAX_COMPLETIONS]]


def _read_plain() -> str:
    console.say(PROMPT, end="")
    text = input()
    while unfinished(text):
        text += "\n" + input()
    return text
