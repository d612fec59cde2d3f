"""Are a model's files what they were when they came? And what do they take on this disk?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localspec.library import manifest, storage
from localspec.library.model import Model
from localspec.library.progress import Progress
from localspec.library.store import Library

SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one file."""

    file: Path
    what: str


def problems(model: Model, progress: Progress) -> tuple[int, list[Problem]]:
    """Return how many files were read and what is wrong with them: sizes, and digests where one is known.

    Of a file in the hub's cache the digest is the name that the cache gives it.
    """
    found, read, expected = [], 0, _expected(model)
    total = sum(max(storage.size_of(file), 0) for file, _, digest in expected if digest)
    progress.step(f"Checking {model.name}", total)
    for file, size, digest in expected:
        if wrong := _wrong_size(file, size):
            found.append(Problem(file, wrong))
        elif digest:
            read += 1
            try:
                own = storage.digest_of(file, progress, counted=True)
            except OSError as error:
                found.append(Problem(file, f"cannot be read: {error.strerror}"))
                continue
            if own != digest:
                found.append(Problem(file, f"has the sha256 {own[:12]}…, not {digest[:12]}…"))
    return read, found


def unread(library: Library) -> list[Path]:
    """List the folders of the library whose manifest is missing or damaged."""
    if not library.models.is_dir():
        return []
    folders = sorted(path for path in library.models.iterdir() if path.is_dir())
    return [path for path in folders if not path.name.startswith(".") and manifest.read(path) is None]


def on_disk(model: Model, home: Path) -> tuple[int, int]:
    """Return the bytes that a model's files take below the folder `home`, and those that lie elsewhere."""
    own = elsewhere = 0
    folders: dict[Path, bool] = {home / "models" / model.name: True}  # -> is it below home?
    for file, size, _ in _expected(model):
        count = max(storage.size_of(file), 0) if size is None else size
        if file.parent not in folders:
            folders[file.parent] = home.resolve() in file.resolve().parents
        if folders[file.parent]:
            own += count
        else:
            elsewhere += count
    return own, elsewhere


def _expected(model: Model) -> list[tuple[Path, int | None, str]]:
    """Return a model's files with the size and the digest that each must have, None and empty if unknown."""
    about = model.manifest
    files: dict[Path, tuple[int | None, str]] = {
        model.folder / name: (size, about.digests.get(name, "")) for name, size in about.sizes.items()
    }
    weights = model.folder / about.weights
    if about.weights and weights.is_absolute() and model.folder not in weights.parents:
        sizes = {Path(place.path): place.size for place in about.places}
        for file in _weights(weights, sizes):
            files[file] = (sizes.get(file), about.digests.get(file.name, ""))
    return [(file, size, digest or _named(file)) for file, (size, digest) in files.items()]


def _weights(path: Path, known: Iterable[Path]) -> list[Path]:
    """Return the files that a model has at `path`, outside its folder: a GGUF, or what a folder has.

    Of an imported folder they are `known`; of one in the hub's cache they are whatever is there.
    """
    if path.suffix == ".gguf":
        return [path]
    return [file for file in known if file.parent == path] or sorted(path.glob("*.safetensors")) or [path]


def _wrong_size(file: Path, size: int | None) -> str:
    there = storage.size_of(file)
    if there < 0:
        return "is missing"
    if size is None and file.is_dir():
        return "has no weights"
    return "" if size in (None, there) else f"has {there:,} bytes, not {size:,}"


def _named(file: Path) -> str:
    """Return the sha256 by which the hub's cache calls a large file, empty for others."""
    if not file.is_symlink():
        return ""
    name = file.resolve().name
    return name if SHA256.fullmatch(name) else ""
