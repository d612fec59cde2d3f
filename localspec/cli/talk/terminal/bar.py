"""A line at the bottom of the terminal while an answer runs above it."""

from __future__ import annotations

import os
import sys
from time import monotonic

from localspec.cli import console
from localspec.cli.talk.terminal.keyboard import is_capable
from localspec.output.visible import visible

INTERVAL = 0.1  # minimum seconds between two texts
SAVE, RESTORE = "\x1b7", "\x1b8"  # the cursor


class Bar:
    """Keeps the last row of the terminal out of what scrolls, from the first text until the end of the block.

    One that is not `wanted`, or has no capable terminal, shows nothing.
    """

    def __init__(self, wanted: bool) -> None:
        self._active = wanted and is_capable() and sys.stdout.isatty() and sys.stderr.isatty()
        self._rows = 0  # of the terminal, 0 before the first text
        self._due = 0.0

    def __enter__(self) -> Bar:
        """Return the bar, which appears with its first text."""
        return self

    def __exit__(self, *error: object) -> None:
        """Clear the row, and give it back."""
        if self._rows:
            console.control(f"{SAVE}\x1b[r\x1b[{self._rows};1H\x1b[2K{RESTORE}")

    def show(self, text: str) -> None:
        """Replace the text, at most ten times a second."""
        if not self._active or monotonic() < self._due:
            return
        self._due = monotonic() + INTERVAL
        columns, rows = os.get_terminal_size(sys.stdout.fileno())  # whatever COLUMNS and LINES say
        if rows != self._rows:
            room = "" if self._rows else "\x1bD\x1b[A"  # the cursor leaves the last row
            console.control(f"{room}{SAVE}\x1b[1;{max(rows - 1, 1)}r{RESTORE}")
            self._rows = rows
        dim, plain = (console.DIM, console.PLAIN) if console.coloured() else ("", "")
        shown = visible(text)[: columns - 1]
        console.control(f"{SAVE}\x1b[{rows};1H\x1b[2K{dim}{shown}{plain}{RESTORE}")
