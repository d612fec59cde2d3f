"""How a long step tells what it is doing."""

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
    """What a long step reports to. A new step ends the one before."""

    def step(self, title: str, total: int | None = None) -> None:
        """Begin a step of `total` bytes, None where that is unknown."""

    def advance(self, count: int) -> None:
        """Say that `count` more bytes of the step are done."""

    def say(self, line: str) -> None:
        """Tell the user something that is no step."""


class Silent:
    """Reports nothing."""

    def step(self, title: str, total: int | None = None) -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def say(self, line: str) -> None:
        pass


class Terminal:
    """Reports on stderr: a bar with bytes, speed and time left, or one line a step where nobody watches.

    Use it as a context, so that the bar is gone when an error is printed.
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
def growth(folder: Path, progress: Progress, seconds: float = 0.25) -> Iterator[None]:
    """Report how much `folder` grows while somebody else's code downloads into it."""
    ended = threading.Event()
    known = bytes_in(folder)
    watcher = threading.Thread(target=_watch, args=(folder, known, progress, ended, seconds), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(folder: Path, known: int, progress: Progress, ended: threading.Event, seconds: float) -> None:
    """Report what goes beyond the `known` bytes, and look once more when it has ended."""
    more = True
    while more:
        more = not ended.wait(seconds)
        now = bytes_in(folder)
        if now > known:
            progress.advance(now - known)
            known = now


def bytes_in(folder: Path) -> int:
    """Add up the sizes of all files below `folder`, which may change meanwhile."""
    return sum(found.st_size for found in files_below(folder))


def files_below(folder: Path) -> Iterator[os.stat_result]:
    """Yield what the system says of each file below `folder`, but for links; any may go meanwhile."""
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield found
