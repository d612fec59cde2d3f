"""A lock for each model name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.disk import private
from localspec.library import storage
from localspec.library.progress import Progress


@contextmanager
def locked(models: Path, name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of one model's name; if another process holds it, report that and wait."""
    from filelock import FileLock, Timeout

    with storage.storage_errors(models):
        private.make_folder(models)
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


@contextmanager
def unless_locked(folder: Path | None, name: str) -> Iterator[bool]:
    """Hold the lock of a name, and yield whether no other process holds it; without a folder none does."""
    from filelock import FileLock, Timeout

    if folder is None:
        yield True
        return
    lock = FileLock(folder / f".{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def remove_lock(folder: Path, name: str) -> None:
    """Remove the file of a lock that is held, and will not be needed again; it stays on Windows."""
    with suppress(OSError):
        (folder / f".{name}.lock").unlink(missing_ok=True)


def remove_unused_locks(folder: Path) -> None:
    """Remove the lock files in a folder whose names nothing there has, and which no process holds."""
    for file in folder.glob(".*.lock"):
        name = file.name.removeprefix(".").removesuffix(".lock")
        if not (folder / name).exists():
            with unless_locked(folder, name) as free:
                if free:
                    remove_lock(folder, name)
