"""Atomic writes: files and folders that appear whole or not at all.

Everything is written under a temporary name beside its final one, `.NAME.partial-PID-RANDOM`, which its
writer holds locked. A killed process leaves one that nobody holds, and `sweep` removes it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where nobody can remove an open file
    fcntl = None  # type: ignore[assignment]

_PARTIAL = re.compile(r"\.(?P<name>.+)\.partial-(?P<pid>\d+)(-[0-9a-f]{8})?", re.DOTALL)
_NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EPERM, errno.EACCES}


@contextmanager
def file(path: Path, *, mode: int | None = None, sync: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `path` once the block has ended well; an error leaves `path` as it was.

    The file gets `mode`, else the mode of the file that it replaces. With `sync` it survives a power failure.
    Raises OSError.
    """
    _sweep_partials_of(path)
    partial, handle = _created(path, mode)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            if mode is None:
                _keep_mode(handle, path)
            if sync:
                os.fsync(handle)
            if fcntl is not None:  # while it is held
                os.replace(partial, path)
        if fcntl is None:  # Windows renames no open file
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def folder(path: Path) -> Iterator[Path]:
    """Yield a new, empty folder that is renamed to `path` once the block has ended well, else removed.

    Raises FileExistsError if another process was faster, and OSError.
    """
    with scratch(path) as partial:
        yield partial
        sync(partial)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "it exists already", str(path))
        try:
            partial.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise FileExistsError(errno.EEXIST, "it exists already", str(path)) from None


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """Yield a new, empty folder beside `path` that is removed after the block, unless it has been renamed."""
    _sweep_partials_of(path)
    partial, handle = _created_folder(path)
    try:
        yield partial
    finally:
        if _is_at(handle, partial):
            shutil.rmtree(partial, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def discard(path: Path) -> None:
    """Rename a file or folder, then remove it, so that a kill leaves no half of it under its name."""
    trash, handle = temporary_name(path), None
    if fcntl is not None:
        handle = os.open(path, os.O_RDONLY)
        lock(handle)  # nobody else sweeps it
    try:
        path.rename(trash)
        if trash.is_dir():
            shutil.rmtree(trash)
        else:
            trash.unlink()
    finally:
        if handle is not None:
            os.close(handle)


def write(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Write a file as `file` does; raises OSError."""
    with file(path, mode=mode) as out:
        out.write(content.encode() if isinstance(content, str) else content)


def temporary_name(path: Path) -> Path:
    """Return a new temporary name beside `path`."""
    end = f".partial-{os.getpid()}-{secrets.token_hex(4)}"
    name = os.fsencode(path.name)[: 254 - len(end)]  # file systems allow 255 bytes
    return path.with_name(f".{os.fsdecode(name)}{end}")


def sweep(root: Path) -> None:
    """Remove the temporary files and folders at any depth below `root` that nobody holds."""
    for partial in partials(root):
        _remove_dead(partial)


def partials(root: Path) -> Iterator[Path]:
    """Yield the temporary files and folders at any depth below `root`, held or not."""
    for place, folders, names in os.walk(root):
        found = [name for name in (*folders, *names) if _PARTIAL.fullmatch(name)]
        folders[:] = [name for name in folders if name not in found]
        yield from (Path(place, name) for name in found)


def sync(root: Path) -> None:
    """Flush every file of a folder, and the folder's own entry list, to the disk."""
    for path in root.iterdir():
        if path.is_file():
            with path.open("rb+") as content:
                os.fsync(content.fileno())
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(root, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_partial_of(name: str, of: str) -> bool:
    """Return whether `name` is a temporary name of the file or folder `of`."""
    match = _PARTIAL.fullmatch(name)
    return match is not None and match["name"] == of


def lock(handle: int) -> bool | None:
    """Lock an open file; return False if another process holds it, None where locks do not work."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def _sweep_partials_of(path: Path) -> None:
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if is_partial_of(entry.name, path.name):
                _remove_dead(Path(entry.path))


def _created(path: Path, mode: int | None) -> tuple[Path, int]:
    """Create a temporary file; return its path and its handle, which holds it."""
    while True:
        partial = temporary_name(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(partial, flags, 0o666 if mode is None else mode)
        if lock(handle) is not False and _is_at(handle, partial):
            return partial, handle
        os.close(handle)  # another process swept it between these two steps


def _keep_mode(handle: int, path: Path) -> None:
    with suppress(OSError, AttributeError):
        os.fchmod(handle, stat.S_IMODE(path.stat().st_mode))


def _created_folder(path: Path) -> tuple[Path, int | None]:
    """Create a temporary folder; return its path and the handle that holds it, None on Windows."""
    while True:
        partial = temporary_name(path)
        partial.mkdir()
        if fcntl is None:
            return partial, None
        try:
            handle = os.open(partial, os.O_RDONLY)
        except FileNotFoundError:  # another process swept it
            continue
        if lock(handle) is not False and _is_at(handle, partial):
            return partial, handle
        os.close(handle)


def _is_at(handle: int | None, path: Path) -> bool:
    """Return whether `path` is still the file or folder that `handle` has opened."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return handle is None or os.path.samestat(os.fstat(handle), found) or fcntl is None


def _remove_dead(partial: Path) -> None:
    """Remove a temporary file or folder unless its writer lives; one that cannot be removed stays."""
    with suppress(OSError):
        if partial.is_symlink() or fcntl is None:
            if not _writer_lives(partial):
                _remove(partial)
            return
        handle = os.open(partial, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            free = lock(handle)
            if free or (free is None and not _writer_lives(partial)):
                _remove(partial)
        finally:
            os.close(handle)


def _remove(partial: Path) -> None:
    if partial.is_dir() and not partial.is_symlink():
        shutil.rmtree(partial, ignore_errors=True)
    else:
        partial.unlink(missing_ok=True)


def _writer_lives(partial: Path) -> bool:
    import psutil

    match = _PARTIAL.fullmatch(partial.name)
    return match is not None and psutil.pid_exists(int(match["pid"]))
