"""A progress that keeps what a user is told."""

from __future__ import annotations

from localspec.library import Silent


class Said(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)
