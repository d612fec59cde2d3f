"""Read and write files of a folder through handles: no link leads outside between a check and its use.

Each part of a path is opened from the handle of the part before it, and no link is followed. Systems without
such calls, as Windows, open the path as a whole.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.disk import atomic

HAS_HANDLES = {os.open, os.mkdir, os.stat, os.unlink} <= os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
CLOSED_IN_CHILDREN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | CLOSED_IN_CHILDREN
FOLDER = getattr(os, "O_DIRECTORY", 0)
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # a pipe or a device does not wait for a writer
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
BLOCK = 1 << 20  # bytes of one read


def read_bytes(root: Path, place: Path, limit: int) -> tuple[bytes, int]:
    """Return at most `limit` bytes of a regular file below `root`, and its size; raises OSError."""
    with _parent(root, place) as folder, _opened(place, READ, folder) as file:
        size = _regular(os.fstat(file)).st_size
        content = bytearray()
        while len(content) < limit and (part := os.read(file, min(BLOCK, limit - len(content)))):
            content += part
        return bytes(content), max(size, len(content))


def write_bytes(root: Path, place: Path, content: bytes) -> None:
    """Write a file below `root` atomically, with its folders; it keeps its permissions. Raises OSError."""
    if not HAS_HANDLES:
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(place, content)
        return
    partial = atomic.temporary_name(place).name
    with _parent(root, place, create=True) as folder:
        assert folder is not None
        _sweep(place.name, folder)
        mode = _mode(place, folder)
        with _opened(Path(partial), NEW, folder) as file:
            try:
                atomic.lock(file)
                _write_all(file, content)
                if mode is not None:
                    os.fchmod(file, mode)
                os.fsync(file)
                os.replace(partial, place.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:  # Ctrl-C too
                with suppress(OSError):
                    os.unlink(partial, dir_fd=folder)
                raise
        with suppress(OSError):  # some file systems cannot
            os.fsync(folder)


def remove(root: Path, place: Path) -> None:
    """Delete a file below `root`; raises OSError."""
    with _parent(root, place) as folder:
        os.unlink(_name(place, folder), dir_fd=folder)


def _sweep(name: str, folder: int) -> None:
    """Remove the temporary files of killed writers of the file `name`."""
    with os.scandir(folder) as entries:
        found = [entry.name for entry in entries if atomic.is_partial_of(entry.name, name)]
    for partial in found:
        with suppress(OSError), _opened(Path(partial), READ, folder) as file:
            if atomic.lock(file):
                os.unlink(partial, dir_fd=folder)


@contextmanager
def _parent(root: Path, place: Path, *, create: bool = False) -> Iterator[int | None]:
    """Yield a handle of the folder of `place`, None where there are no handles."""
    if not HAS_HANDLES:
        yield None
        return
    folder = os.open(root, os.O_RDONLY | FOLDER | NO_LINK)
    try:
        for part in place.relative_to(root).parts[:-1]:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            below = os.open(part, os.O_RDONLY | FOLDER | NO_LINK, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _opened(place: Path, flags: int, folder: int | None) -> Iterator[int]:
    file = os.open(_name(place, folder), flags | NO_LINK, 0o666, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def _name(place: Path, folder: int | None) -> str:
    return str(place) if folder is None else place.name


def _regular(status: os.stat_result) -> os.stat_result:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file")
    return status


def _mode(place: Path, folder: int | None) -> int | None:
    """Return the permissions of an existing file, None for a new one."""
    try:
        status = os.stat(_name(place, folder), dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _regular(status).st_mode & 0o7777


def _write_all(file: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(file, left) :]
