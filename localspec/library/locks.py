"""A lock for each model name, and the removal of what killed processes left behind."""

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


def partial_folder(models: Path, name: str) -> Path:
    """Return the temporary folder in which this process builds a model, beside its final place."""
    return models / f".{name}.partial-{os.getpid()}"


@contextmanager
def locked(models: Path, name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of one model's name; if another process holds it, report that and wait."""
    from filelock import FileLock, Timeout

    with storage.storage_errors(models):
        models.mkdir(parents=True, exist_ok=True)
        lock = FileLock(models / f".{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.say(f"Another localspec is using `{name}`; waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def remove_stale_partials(models: Path) -> None:
    """Remove temporary folders whose name is not locked: the process that made them was killed."""
    from filelock import FileLock, Timeout

    if not models.is_dir():
        return
    for path in models.iterdir():
        match = _PARTIAL.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        try:
            with FileLock(models / f".{match['name']}.lock", timeout=0):
                shutil.rmtree(path, ignore_errors=True)
        except (Timeout, OSError):  # in use, or owned by somebody else
            continue
