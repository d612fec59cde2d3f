"""The prompt of a command: its argument, and the text on stdin."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from localspec.cli import console
from localspec.cli.options import has_surrogates, utf8
from localspec.disk import given
from localspec.errors import PromptError

WAIT = 3.0  # seconds after which the user is told what the command waits for
SENTENCE_ENDS = ("?", ".", "!")
PATHS = ("/", "./", "../", "~")
MAX_STDIN = 64_000_000  # characters
NO_STDIN = "`< /dev/null` gives it none"


def is_prompt(argument: str | None) -> bool:
    """Return whether a lone argument is a prompt, and no model: a blank in it or `?`, `.` or `!` at its end.

    A file or folder that exists, and what begins like a path, is a model.
    """
    if argument is None or argument.startswith(PATHS) or given.exists(argument):
        return False
    return any(map(str.isspace, argument)) or argument.endswith(SENTENCE_ENDS)


def say_model(model: str, why: str) -> None:
    """Say which model answers, where the arguments do not."""
    console.say(f"{model} answers, {why}", console.DIM)


def read_prompt(argument: str | None) -> str | None:
    """Return the argument followed by the text on stdin, or None when neither is given.

    Raises PromptError for bytes that are not of stdin's encoding, and for more than 64 million characters.
    """
    piped = None if sys.stdin is None or sys.stdin.isatty() else _read_stdin()
    if argument and piped and piped.strip():
        lines = piped.count("\n") + (not piped.endswith("\n"))
        console.say(f"The prompt goes on with stdin: {lines:,} line{'s' * (lines > 1)}", console.DIM)
    typed = utf8(argument or "")
    if typed is None or has_surrogates(piped or ""):
        encoding = "UTF-8" if typed is None else sys.stdin.encoding.upper()
        raise PromptError(f"The prompt is not {encoding} text", "Check where it comes from, and convert it")
    return None if argument is piped is None else "\n\n".join(filter(None, (typed, piped)))


def _read_stdin() -> str:
    with _telling():
        text = sys.stdin.read(MAX_STDIN + 1)
    if len(text) > MAX_STDIN:
        raise PromptError(f"stdin has more than {MAX_STDIN:,} characters", f"Give it less; {NO_STDIN}")
    return text.removeprefix("\ufeff")


@contextmanager
def _telling() -> Iterator[None]:
    """Say what the command waits for, if the block takes long."""
    told = threading.Timer(
        WAIT, console.say, [f"Waiting for the end of stdin, which is part of the prompt. {NO_STDIN}"]
    )
    told.daemon = True
    told.start()
    try:
        yield
    finally:
        told.cancel()
