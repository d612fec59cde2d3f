"""Progress on the terminal, without hidden characters."""

from __future__ import annotations

from localspec import library
from localspec.output.visible import visible


class Terminal(library.Terminal):
    """Reports on stderr; titles may hold names of files and lines of other programs."""

    def step(self, title: str, total: int | None = None) -> None:
        """Begin a step."""
        super().step(visible(title), total)

    def say(self, line: str) -> None:
        """Show a line that belongs to no step."""
        super().say(visible(line))
