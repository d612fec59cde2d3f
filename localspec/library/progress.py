"""Progress reports of long steps."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

BYTES = "byte"  # the unit of a step whose count is shown in kB, MB or GB


class Progress(Protocol):
    """Receives the progress of long steps; a step within another one counts for itself."""

    def step(self, title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[None]:
        """Return a step that lasts as long as its `with` block, and whose title is gone afterwards.

        `unit` is the singular of what is counted, BYTES or such as "prompt", empty if nothing is. `total` is
        how many there are, None if unknown.
        """

    def advance(self, count: int = 1) -> None:
        """Report that `count` more of the innermost step are done."""

    def say(self, line: str) -> None:
        """Show a line that belongs to no step."""


class Silent:
    """Reports nothing."""

    def step(self, title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[None]:
        return nullcontext()

    def advance(self, count: int = 1) -> None:
        pass

    def say(self, line: str) -> None:
        pass


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
