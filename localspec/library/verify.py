"""Compare the files of installed models to their sizes and checksums, and add up their disk usage."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localspec.library import manifest, storage
from localspec.library.model import StoredModel
from localspec.library.progress import Progress
from localspec.library.store import Library

SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that is not as it should be."""

    file: Path
    what: str


def problems(model: StoredModel, progress: Progress) -> tuple[int, list[Problem]]:
    """Return how many files were read, and every file whose size or known sha256 is wrong.

    The expected sha256 of a file in the hub's cache is its blob name.
    """
    wrong, read, expected = [], 0, _expected(model)
    total = sum(max(storage.size_of(file), 0) for file, _, digest in expected if digest)
    progress.step(f"Checking {model.name}", total)
    for file, size, digest in expected:
        if what := _wrong_size(file, size):
            wrong.append(Problem(file, what))
        elif digest:
            read += 1
            if what := _wrong_digest(file, digest, progress):
                wrong.append(Problem(file, what))
    return read, wrong


def unreadable(library: Library) -> list[Path]:
    """List the folders of the library whose manifest is missing or damaged."""
    if not library.models.is_dir():
        return []
    folders = sorted(path for path in library.models.iterdir() if path.is_dir())
    return [path for path in folders if not path.name.startswith(".") and manifest.read(path) is None]


def disk_usage(model: StoredModel, home: Path) -> tuple[int, int]:
    """Return the bytes of a model's files below the folder `home`, and of those elsewhere."""
    below = elsewhere = 0
    folders: dict[Path, bool] = {home / "models" / model.name: True}  # -> is it below home?
    for file, size, _ in _expected(model):
        count = max(storage.size_of(file), 0) if size is None else size
        if file.parent not in folders:
            folders[file.parent] = home.resolve() in file.resolve().parents
        if folders[file.parent]:
            below += count
        else:
            elsewhere += count
    return below, elsewhere


def _expected(model: StoredModel) -> list[tuple[Path, int | None, str]]:
    """Return a model's files, each with its expected size (None if unknown) and sha256 (empty if unknown)."""
    about = model.manifest
    files: dict[Path, tuple[int | None, str]] = {
        model.folder / name: (size, about.digests.get(name, "")) for name, size in about.sizes.items()
    }
    weights = model.folder / about.weights
    if about.weights and weights.is_absolute() and model.folder not in weights.parents:
        sizes = {Path(file.path): file.size for file in about.source_files}
        for file in _outside_files(weights, sizes):
            files[file] = (sizes.get(file), about.digests.get(file.name, ""))
    return [(file, size, digest or _blob_digest(file)) for file, (size, digest) in files.items()]


def _outside_files(path: Path, known: Iterable[Path]) -> list[Path]:
    """Return the weight files at `path`, outside a model's folder: a GGUF, or the files of a folder.

    The files of an imported folder are `known`; a folder of the hub's cache is listed.
    """
    if path.suffix == ".gguf":
        return [path]
    return [file for file in known if file.parent == path] or sorted(path.glob("*.safetensors")) or [path]


def _wrong_size(file: Path, expected: int | None) -> str:
    size = storage.size_of(file)
    if size < 0:
        return "is missing"
    if expected is None and file.is_dir():
        return "has no weights"
    return "" if expected in (None, size) else f"has {size:,} bytes, expected {expected:,}"


def _wrong_digest(file: Path, expected: str, progress: Progress) -> str:
    try:
        digest = storage.digest_of(file, progress, counted=True)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if digest == expected else f"has the sha256 {digest[:12]}…, expected {expected[:12]}…"


def _blob_digest(file: Path) -> str:
    """Return the sha256 that names a large file's blob in the hub's cache, empty for other files."""
    if not file.is_symlink():
        return ""
    name = file.resolve().name
    return name if SHA256.fullmatch(name) else ""
