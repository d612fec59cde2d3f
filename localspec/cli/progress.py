"""Progress on the terminal: counts in the right unit, without hidden characters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from localspec.bench.wording import counted
from localspec.cli import console
from localspec.cli.sizes import format_bytes
from localspec.library.progress import BYTES
from localspec.output.visible import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live

BAR_WIDTH = 24  # columns
MIN_TITLE = 12  # columns
AUDIO = "seconds of audio"  # a unit that is shown as on a clock
SETTLED = 1.0  # seconds until the speed of a step is believed


@dataclass(slots=True)
class Step:
    """A step that is open, and what is done of it."""

    title: str
    total: int | None
    unit: str
    started: float = field(default_factory=monotonic)
    done: int = 0

    def speed(self, now: float) -> float:
        """Return how much was done a second, 0 while that is not known."""
        seconds = now - self.started
        return max(self.done, 0) / seconds if seconds >= SETTLED else 0.0

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until all is done, None if they are not known."""
        speed = self.speed(now)
        return (self.total - self.done) / speed if self.total and speed and self.done < self.total else None

    def count(self, now: float) -> str:
        """Return "12.0 MB of 98.4 MB, 3.1 MB/s", "3:20 of 58:00", "3 of 12 prompts", or "3 prompts"."""
        if self.unit == AUDIO:
            return format_clock(self.done) + (f" of {format_clock(self.total)}" if self.total else "")
        if self.unit != BYTES:
            if self.total is not None:
                return f"{self.done:,} of {counted(self.total, self.unit)}"
            return counted(self.done, self.unit) if self.unit and self.done else ""
        amount = format_bytes(self.done) + (f" of {format_bytes(self.total)}" if self.total else "")
        speed = self.speed(now)
        return f"{amount}, {format_bytes(speed)}/s" if speed else amount


def format_left(seconds: float | None) -> str:
    """Return "0:07 left", "12:30 left" or "1:02:03 left"; empty for None."""
    return "" if seconds is None else f"{format_clock(seconds)} left"


def format_clock(seconds: float) -> str:
    """Return "0:07", "12:30" or "1:02:03"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}:{minutes:02}" if hours else f"{minutes}") + f":{rest:02}"


class Terminal:
    """Reports on stderr: a line for each open step; without a terminal, the title of each step as it begins.

    Use it as a context manager, so that all lines are gone before an error is printed.
    """

    def __init__(self) -> None:
        self._live: Live | None = None
        self._steps: list[Step] = []  # the innermost last

    def __enter__(self) -> Terminal:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live
            from rich.spinner import Spinner

            self._spinner = Spinner("dots")
            terminal = Console(stderr=True)
            self._live = Live(self, console=terminal, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, *reason: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[None]:
        """Show a step until its block ends, also by an error; titles may hold names of files."""
        if self._live is None:
            console.say(title)
        step = Step(visible(title), total, unit)
        self._steps.append(step)
        try:
            yield
        finally:
            self._steps.remove(step)

    def advance(self, count: int = 1) -> None:
        """Count for the innermost step."""
        if self._steps:
            self._steps[-1].done += count

    def say(self, line: str) -> None:
        """Show a line that belongs to no step; it may be one of another program."""
        if self._live is None:
            console.say(line)
        else:
            self._live.console.print(visible(line), markup=False, highlight=False)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the lines off the terminal while the block prints there."""
        if self._live is None:
            yield
            return
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        now, steps = monotonic(), list(self._steps)
        left = [format_left(step.seconds_left(now)) for step in steps]
        counts = [
            ", ".join(filter(None, (step.count(now), text))) for step, text in zip(steps, left, strict=True)
        ]
        width = max(options.max_width - BAR_WIDTH - max(map(len, counts), default=0) - 2, MIN_TITLE)
        table = Table.grid(padding=(0, 1))
        for depth, (step, count) in enumerate(zip(steps, counts, strict=True)):
            title = Text("  " * depth + step.title)
            title.truncate(width, overflow="ellipsis")
            known = step.total is not None
            table.add_row(
                title, ProgressBar(step.total, step.done, BAR_WIDTH) if known else self._spinner, Text(count)
            )
        yield table
