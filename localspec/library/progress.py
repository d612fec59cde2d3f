"""Progress reports of long steps."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress(Protocol):
    """Receives the progress of long steps. A new step ends the previous one."""

    def step(self, title: str, total: int | None = None) -> None:
        """Begin a step of `total` bytes, None if unknown."""

    def advance(self, count: int) -> None:
        """Report that `count` more bytes of the step are done."""

    def say(self, line: str) -> None:
        """Show a line that belongs to no step."""


class Silent:
    """Reports nothing."""

    def step(self, title: str, total: int | None = None) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def say(self, line: str) -> None:
        pass


class Terminal:
    """Reports on stderr: a bar with bytes, speed and time left; without a terminal, one line per step.

    Use it as a context manager, so that the bar is gone before an error is printed.
    """

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Terminal:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
        return self

    def __exit__(self, *reason: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def step(self, title: str, total: int | None = None) -> None:
        if self._bar is None:
            print(title, file=sys.stderr)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(title, total=total)

    def advance(self, count: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, count)

    def say(self, line: str) -> None:
        if self._bar is None:
            print(line, file=sys.stderr)
        else:
            self._bar.console.print(line, markup=False, highlight=False)


def _bar() -> Bar:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def report_growth(folder: Path, progress: Progress, seconds: float = 0.25) -> Iterator[None]:
    """Report how much `folder` grows while other code downloads into it."""
    done = threading.Event()
    size = folder_bytes(folder)
    watcher = threading.Thread(target=_watch, args=(folder, size, progress, done, seconds), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(folder: Path, reported: int, progress: Progress, done: threading.Event, seconds: float) -> None:
    """Report growth beyond the `reported` bytes, with a last look after `done` is set."""
    more = True
    while more:
        more = not done.wait(seconds)
        size = folder_bytes(folder)
        if size > reported:
            progress.advance(size - reported)
            reported = size


def folder_bytes(folder: Path) -> int:
    """Return the total size of all files below `folder`, which may change meanwhile."""
    return sum(status.st_size for status in files_below(folder))


def files_below(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status of each regular file below `folder`, skipping files that vanish meanwhile."""
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                yield status
