"""Are a model's files what they were when they came? And what do they take on this disk?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from localspec.library import disk
from localspec.library.model import Model
from localspec.library.progress import Progress

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
    found, read = [], 0
    for file, size, digest in _expected(model):
        there = disk.size_of(file)
        if there < 0:
            found.append(Problem(file, "is missing"))
        elif size is not None and there != size:
            found.append(Problem(file, f"has {there:,} bytes, not {size:,}"))
        elif digest:
            read += 1
            own = disk.digest_of(file, progress, f"Checking {file.name}")
            if own != digest:
                found.append(Problem(file, f"has the sha256 {own[:12]}…, not {digest[:12]}…"))
    return read, found


def _expected(model: Model) -> list[tuple[Path, int | None, str]]:
    """Return a model's files with the size and the digest that each must have, None and empty if unknown."""
    about = model.manifest
    files: dict[Path, tuple[int | None, str]] = {
        model.folder / name: (size, about.digests.get(name, "")) for name, size in about.sizes.items()
    }
    weights = model.folder / about.weights
    if about.weights and weights.is_absolute() and weights not in files and weights.suffix == ".gguf":
        size = next((place.size for place in about.places if place.path == str(weights)), None)
        files[weights] = (size, about.digests.get(weights.name, ""))
    return [(file, size, digest or _named(file)) for file, (size, digest) in files.items()]


def _named(file: Path) -> str:
    """Return the sha256 by which the hub's cache calls a large file, empty for others."""
    name = file.resolve().name if file.is_symlink() else ""
    return name if SHA256.fullmatch(name) else ""


def on_disk(model: Model, home: Path) -> tuple[int, int]:
    """Return the bytes that a model's files take below the folder `home`, and those that lie elsewhere."""
    own = elsewhere = 0
    for file, size, _ in _expected(model):
        count = size if size is not None else max(disk.size_of(file), 0)
        if home in file.resolve().parents:
            own += count
        else:
            elsewhere += count
    return own, elsewhere
