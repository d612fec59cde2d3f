"""All that the command prints: text for people without hidden characters, and data as it is.

Errors, hints and statistics go to stderr, to keep stdout for data.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import IO, TYPE_CHECKING, Any

from localspec.errors import LocalspecError
from localspec.output.visible import escaped, visible

if TYPE_CHECKING:
    from rich.status import Status
    from rich.text import Text

Parts = Sequence[tuple[str, str]]  # texts, each with its colour, "" for none

DEBUG = "LOCALSPEC_DEBUG"  # the variable that shows tracebacks
DELAY = 0.5  # seconds of silence before a status line appears
RED, CYAN, DIM, PLAIN = "\x1b[31;1m", "\x1b[36;1m", "\x1b[2m", "\x1b[0m"


def coloured() -> bool:
    """Return whether stderr takes colours: it is a terminal, and NO_COLOR is not set."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str, colour: str = "", end: str = "\n") -> None:
    """Print text on stderr, in a colour where stderr takes one."""
    _write(sys.stderr, _painted(visible(text), colour) + end)


def show(error: LocalspecError) -> None:
    """Print an error and its hint."""
    _write(sys.stderr, f"{_painted('error', RED)}: {visible(error.message)}\n")
    if error.hint is not None:
        _write(sys.stderr, f"\n{_painted('hint', CYAN)}: {visible(error.hint)}\n")


def show_internal(error: BaseException) -> None:
    """Print an error that no user should see, and how to report it."""
    told = str(error).strip().partition("\n")[0]
    line = f"{type(error).__name__}: {told}" if told else type(error).__name__
    _write(sys.stderr, f"{_painted('internal error', RED)}: {visible(line)}\n")
    again = "" if debugging() else f"Run it again with `{DEBUG}=1` for the traceback; "
    hint = f"{again}report it with the command and `localspec doctor`"
    _write(sys.stderr, f"\n{_painted('hint', CYAN)}: {hint}\n")


def show_traceback() -> None:
    """Print the traceback of the error that is handled, if the user wants to see it."""
    if debugging():
        say(traceback.format_exc())


def debugging() -> bool:
    """Return whether the user wants to see tracebacks."""
    return bool(os.environ.get(DEBUG))


def print_text(text: str) -> None:
    """Print text for people on stdout."""
    _write(sys.stdout, visible(text) + "\n")


def print_parts(parts: Parts) -> None:
    """Print a line on stdout, of texts with their colours."""
    _write(sys.stdout, _joined(parts) + "\n")


def say_parts(parts: Parts) -> None:
    """Print a line on stderr, of texts with their colours."""
    _write(sys.stderr, _joined(parts) + "\n")


def print_json(values: Any, indent: int | None = None) -> None:
    """Print a value as JSON on stdout; hidden characters in its texts are escaped, so it stays the same.

    So are all but ASCII if stdout has another encoding than UTF-8.
    """
    other = not (sys.stdout.encoding or "").lower().startswith("utf")
    print_exact(escaped(json.dumps(values, ensure_ascii=other, indent=indent)) + "\n")


def print_exact(text: str) -> None:
    """Print data on stdout as it is."""
    _write(sys.stdout, text)


def print_data(text: str) -> None:
    """Print data on stdout: into a pipe or a file as it is, on a terminal without hidden characters."""
    _write(sys.stdout, visible(text) if sys.stdout.isatty() else text)


def print_answer(text: str) -> None:
    """Print an answer on stdout: as it is into a pipe or a file, without hidden characters on a terminal."""
    _write(sys.stdout, (visible(text) if sys.stdout.isatty() else text) + "\n")


def control(sequence: str) -> None:
    """Send a control sequence to the terminal, if stderr or stdout is one."""
    for out in (sys.stderr, sys.stdout):
        if out.isatty():
            with suppress(OSError):  # it was closed
                _write(out, sequence)
            return


def confirm(question: str) -> bool:
    """Ask on stderr, and return whether the answer is a yes; raises typer.Abort at Ctrl-C."""
    import typer

    return typer.confirm(visible(question), err=True)


def _joined(parts: Parts) -> str:
    befores = ["", *(text for text, _ in parts)]
    return "".join(
        f"{colour}{visible(text, before)}{colour and PLAIN}"
        for before, (text, colour) in zip(befores, parts, strict=False)
    )


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{PLAIN}" if colour and coloured() else text


def _write(out: IO[str], text: str) -> None:
    """Write text at once; a stderr that is full or gone loses it, and the command goes on."""
    with suppress(OSError) if out is sys.stderr else nullcontext():
        out.write(text)
        out.flush()


class Waiting:
    """A status line on stderr, if that is a terminal, from `show` until `clear`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._status: Status | None = None
        self._text: str | Callable[[], str] = ""

    def show(self, text: str | Callable[[], str]) -> None:
        """Set the text of the line, which appears after DELAY seconds; a function is asked for it again."""
        self._text = text
        if self._status is None and self._timer is None and sys.stderr.isatty():
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

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(visible(self._text if isinstance(self._text, str) else self._text()))

    def _begin(self) -> None:
        from rich.console import Console

        with self._lock:
            if self._timer is not None:  # not cleared in the meantime
                self._status = Console(stderr=True).status(self)  # renders itself with each frame
                self._status.start()
