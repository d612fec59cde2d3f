"""What a user sees beside the data: errors, hints and numbers, on stderr."""

from __future__ import annotations

import os
import sys

from localspec.errors import LocalspecError

RED, CYAN, DIM, PLAIN = "\x1b[31;1m", "\x1b[36;1m", "\x1b[2m", "\x1b[0m"


def coloured() -> bool:
    """Tell whether stderr takes colours: a terminal, and NO_COLOR is not set."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """Return `text` in a colour where stderr takes one."""
    return f"{colour}{text}{PLAIN}" if coloured() else text


def say(line: str) -> None:
    """Print a line on stderr."""
    print(line, file=sys.stderr, flush=True)


def show(error: LocalspecError) -> None:
    """Print an error and its hint."""
    say(f"{paint('error', RED)}: {error.message}")
    if error.hint is not None:
        say(f"\n{paint('hint', CYAN)}: {error.hint}")
