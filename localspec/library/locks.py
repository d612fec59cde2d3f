"""One process at a time for each model's name, and no leftovers of those that were killed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localspec.library import storage
from localspec.library.progress import Progress

_PARTIAL = re.compile(r"\.(?P<name>.+)\.partial-\d+")


def partial_of(models: Path, name: str) -> Path:
    """Name the folder in which this process makes a model, beside its final place."""
    return models / f".{name}.partial-{os.getpid()}"


@contextmanager
def locked(models: Path, name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of one model's name; say so when another process has it, and wait."""
    from filelock import FileLock, Timeout

    with storage.writing(models):
        models.mkdir(parents=True, exist_ok=True)
        lock = FileLock(models / f".{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.say(f"Another localspec is busy with `{name}`; waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sweep(models: Path) -> None:
    """Remove the partial folders whose name nobody has locked: whoever made them was killed."""
    from filelock import FileLock, Timeout

    if not models.is_dir():
        return
    for path in models.iterdir():
        found = _PARTIAL.fullmatch(path.name)
        if found is None or not path.is_dir():
            continue
        try:
            with FileLock(models / f".{found['name']}.lock", timeout=0):
                shutil.rmtree(path, ignore_errors=True)
        except (Timeout, OSError):  # busy, or not ours to touch
            continue
