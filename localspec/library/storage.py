"""Room on the disk, and files that appear whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from localspec.errors import StorageError
from localspec.library.progress import Progress, files_below

PIECE = 1 << 22  # bytes read at a time

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


@contextmanager
def writing(folder: Path, needed: int = 0) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into StorageError; `needed` bytes is what was asked for."""
    try:
        yield
    except OSError as error:
        found = storage_error(error, folder, needed)
        if found is None:
            raise
        raise found from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a file that must not be read into StorageError."""
    try:
        yield
    except PermissionError as error:
        raise StorageError(f"`{path}` cannot be read", f"See who may: `ls -l {path}`") from error


def storage_error(error: OSError, folder: Path, needed: int = 0) -> StorageError | None:
    """Explain an error of the disk; None for any other."""
    if error.errno in _FULL:
        return full(folder, needed)
    if error.errno in _FORBIDDEN:
        where = error.filename or folder
        return StorageError(f"`{where}` cannot be written", "Choose another folder with `LOCALSPEC_HOME`")
    return None


def full(folder: Path, needed: int) -> StorageError:
    """Say that the disk is full, with both byte counts where they are known."""
    wants = f" and {needed:,} are needed" if needed else ""
    return StorageError(
        f"The disk of `{folder}` is full: {free(folder):,} bytes are free{wants}",
        "Make room, or choose a folder on another disk with `LOCALSPEC_HOME`",
    )


def free(folder: Path) -> int:
    """Return the bytes that are free where `folder` is or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_room(folder: Path, needed: int) -> None:
    """Raise StorageError unless `needed` bytes fit where `folder` is or will be."""
    if free(folder) < needed:
        raise full(folder, needed)


def digest_of(path: Path, progress: Progress, title: str = "", *, counted: bool = False) -> str:
    """Return a file's sha256 in hex; a `title` makes it a step of its own, `counted` a part of the last."""
    if title:
        progress.step(title, path.stat().st_size)
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
            if title or counted:
                progress.advance(len(piece))
    return found.hexdigest()


def digest_of_text(text: str) -> str:
    """Return a text's sha256 in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def size_of(path: Path) -> int:
    """Return a file's bytes, -1 when there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def freeable(folder: Path) -> int:
    """Return the bytes that deleting `folder` frees: of files that have no other name."""
    return sum(found.st_size for found in files_below(folder) if found.st_nlink == 1)


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all; raises StorageError."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with writing(path.absolute().parent), partial.open("wb") as file:
            file.write(text.encode())
            synced(file)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def synced(file: BinaryIO) -> None:
    """Make sure what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make sure every file of a folder, and the folder's own list of names, is on the disk."""
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
