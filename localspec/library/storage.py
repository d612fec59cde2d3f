"""Free disk space, checksums, and the errors of a disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from localspec.disk import atomic
from localspec.errors import StorageError
from localspec.library.progress import BYTES, Progress, files_below

CHUNK_BYTES = 1 << 22  # read at a time

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


@contextmanager
def storage_errors(folder: Path, needed: int = 0) -> Iterator[None]:
    """Turn a full disk or a missing permission into StorageError; `needed` is the bytes to be written."""
    try:
        yield
    except OSError as error:
        explained = as_storage_error(error, folder, needed)
        if explained is None:
            raise
        raise explained from error


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn an error of reading `path` into StorageError."""
    try:
        yield
    except OSError as error:
        if error.filename not in (None, str(path)):
            raise
        raise StorageError(
            f"`{path}` cannot be read: {error.strerror}", f"Check its permissions with `ls -l {path}`"
        ) from error


def as_storage_error(error: OSError, folder: Path, needed: int = 0) -> StorageError | None:
    """Return a StorageError for an error of the disk, None for any other."""
    if error.errno in _FULL:
        return disk_full(folder, needed)
    if error.errno in _FORBIDDEN:
        where = error.filename or folder
        return StorageError(f"`{where}` cannot be written", "Choose another folder with `LOCALSPEC_HOME`")
    return None


def disk_full(folder: Path, needed: int) -> StorageError:
    """Return the error of a full disk, with both byte counts where they are known."""
    and_needed = f" and {needed:,} are needed" if needed else ""
    return StorageError(
        f"The disk of `{folder}` is full: {free_bytes(folder):,} bytes are free{and_needed}",
        "Free some space, or choose a folder on another disk with `LOCALSPEC_HOME`",
    )


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk where `folder` is or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_free_space(folder: Path, needed: int) -> None:
    """Raise StorageError unless `needed` bytes fit where `folder` is or will be."""
    if free_bytes(folder) < needed:
        raise disk_full(folder, needed)


def digest_of(path: Path, progress: Progress, title: str = "", *, counted: bool = False) -> str:
    """Return a file's sha256 in hex.

    With a `title` it is a progress step of its own; with `counted` its bytes advance the current step.
    """
    step = progress.step(title, path.stat().st_size, BYTES) if title else nullcontext()
    digest = hashlib.sha256()
    with step, path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if title or counted:
                progress.advance(len(chunk))
    return digest.hexdigest()


def digest_of_text(text: str) -> str:
    """Return a text's sha256 in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def size_of(path: Path) -> int:
    """Return a file's size in bytes, -1 if it does not exist, as under a name that no file can have."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return -1


def reclaimable_bytes(folder: Path) -> int:
    """Return the bytes that deleting `folder` frees: files with another hard link do not count."""
    return sum(status.st_size for status in files_below(folder) if status.st_nlink == 1)


def write_atomically(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write a file completely or not at all; raises StorageError."""
    with storage_errors(path.absolute().parent):
        atomic.write(path, text, mode=mode)


def sync_file(file: BinaryIO) -> None:
    """Flush a file to the disk."""
    file.flush()
    os.fsync(file.fileno())
