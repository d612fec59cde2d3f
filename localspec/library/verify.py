"""Compare the files of installed models to their sizes and checksums, and add up their disk usage."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from localspec.disk.samples import sampled_digest
from localspec.errors import BrokenModel
from localspec.library import manifest, storage
from localspec.library.importing.completeness import outside_weights
from localspec.library.installed import InstalledModels
from localspec.library.model import StoredModel
from localspec.library.progress import BYTES, Progress

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
    total = sum(max(storage.size_of(each.file), 0) for each in expected if each.digest)
    with progress.step(f"Checking {model.name}", total, BYTES):
        for file, size, digest, sample in expected:
            if what := _wrong_size(file, size):
                wrong.append(Problem(file, what))
            elif digest:
                read += 1
                if what := _wrong_digest(file, digest, progress):
                    wrong.append(Problem(file, what))
            elif sample and (what := _wrong_sample(file, sample)):
                wrong.append(Problem(file, what))
    return read, wrong


def check(model: StoredModel, progress: Progress) -> None:
    """Compare all files of a model to their checksums; raises BrokenModel for the first that is wrong."""
    for problem in problems(model, progress)[1]:
        raise _broken(model, problem)


def check_samples(model: StoredModel) -> None:
    """Compare the sampled digests of a model's files; raises BrokenModel for a file that has changed.

    It takes milliseconds: small files are read whole, samples of large ones.
    """
    for file, size, _, sample in _expected(model):
        what = _wrong_size(file, size) or (sample and _wrong_sample(file, sample))
        if what:
            raise _broken(model, Problem(file, what))


def _broken(model: StoredModel, problem: Problem) -> BrokenModel:
    return BrokenModel(
        f"`{problem.file}` {problem.what}",
        f"See `localspec verify {model.name}`; `localspec rm {model.name}`, then get it again",
    )


def unreadable(library: InstalledModels) -> list[Path]:
    """List the folders of the library whose manifest is missing or damaged."""
    if not library.models.is_dir():
        return []
    folders = sorted(path for path in library.models.iterdir() if path.is_dir())
    return [path for path in folders if not path.name.startswith(".") and manifest.read(path) is None]


def disk_usage(model: StoredModel, home: Path) -> tuple[int, int]:
    """Return the bytes of a model's files below the folder `home`, and of those elsewhere."""
    below = elsewhere = 0
    folders: dict[Path, bool] = {home / "models" / model.name: True}  # -> is it below home?
    for file, size, *_ in _expected(model):
        count = max(storage.size_of(file), 0) if size is None else size
        if file.parent not in folders:
            folders[file.parent] = home.resolve() in file.resolve().parents
        if folders[file.parent]:
            below += count
        else:
            elsewhere += count
    return below, elsewhere


class _Expected(NamedTuple):
    """A file of a model; None or empty is unknown."""

    file: Path
    size: int | None
    digest: str
    sample: str


def _expected(model: StoredModel) -> list[_Expected]:
    about = model.manifest
    sizes: dict[Path, int | None] = {model.folder / name: size for name, size in about.sizes.items()}
    known = {Path(file.path): file.size for file in about.source_files}
    sizes |= {file: known.get(file) for file in outside_weights(about, model.folder)}
    return [
        _Expected(
            file,
            size,
            about.digests.get(file.name, "") or _blob_digest(file),
            about.samples.get(file.name, ""),
        )
        for file, size in sizes.items()
    ]


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


def _wrong_sample(file: Path, expected: str) -> str:
    try:
        return "" if sampled_digest(file) == expected else "is damaged, or was changed since it was added"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _blob_digest(file: Path) -> str:
    """Return the sha256 that names a large file's blob in the hub's cache, empty for other files."""
    if not file.is_symlink():
        return ""
    name = file.resolve().name
    return name if SHA256.fullmatch(name) else ""
