"""Decide whether a folder is a complete model, and finish the manifest of a new one."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from localspec.disk.samples import sampled_digest
from localspec.errors import UnsupportedModel
from localspec.library import catalogue, manifest, storage
from localspec.library.importing import convert
from localspec.library.manifest import Manifest
from localspec.library.model import GRAPH, StoredModel
from localspec.library.progress import BYTES, Progress


def sizes_of(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file of a folder."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}


def finish_manifest(about: Manifest, folder: Path, progress: Progress) -> Manifest:
    """Add the sizes and digests of the model's files, the time and the version of localspec."""
    files = Path(about.folder) if about.folder else folder
    sizes = sizes_of(files)
    own = {} if about.folder else digests_of(folder, sizes, f"Checking {about.name}", progress)
    return msgspec.structs.replace(
        about,
        sizes=sizes,
        digests={**own, **about.digests},
        samples=samples_of([files / name for name in sizes] + outside_weights(about, folder)),
        created=manifest.now(),
        localspec=_version(),
    )


def digests_of(folder: Path, sizes: dict[str, int], title: str, progress: Progress) -> dict[str, str]:
    """Return the sha256 of each file of `sizes` in `folder`, as one step of the progress."""
    with progress.step(title, sum(sizes.values()), BYTES):
        return {name: storage.digest_of(folder / name, progress, counted=True) for name in sizes}


def samples_of(files: Iterable[Path]) -> dict[str, str]:
    """Return the sampled digest of each file by its name."""
    return {file.name: sampled_digest(file) for file in files}


def outside_weights(about: Manifest, folder: Path) -> list[Path]:
    """List the weight files of a model that lie outside its folder: a GGUF, or the files of a folder.

    The files of an imported folder are known by the manifest; a folder of the hub's cache is listed.
    """
    path = folder / about.weights
    if not about.weights or not path.is_absolute() or folder in path.parents:
        return []
    if path.suffix == ".gguf":
        return [path]
    known = [Path(file.path) for file in about.source_files]
    return [file for file in known if file.parent == path] or sorted(path.glob("*.safetensors")) or [path]


def load_if_complete(folder: Path, about: Manifest) -> StoredModel | None:
    """Return the model, None if a file is missing or has another size."""
    files = Path(about.folder) if about.folder else folder
    complete = all(storage.size_of(files / name) == size for name, size in about.sizes.items())
    model = StoredModel(about.name, files, about, draft_of(about))
    readable = "tokenizer.json" in about.sizes or (bool(about.sizes) and model.kind == catalogue.DIARIZATION)
    return model if about.name == folder.name and readable and complete else None


def use_in_place(path: Path) -> StoredModel:
    """Return the model of an OpenVINO folder without importing it."""
    if not (path / "tokenizer.json").is_file():
        raise UnsupportedModel(
            f"`{path}` has `{GRAPH}` but no `tokenizer.json`", "Copy it from the model's own repository"
        )
    folder = path.resolve()
    about = manifest.read(folder)
    if about is not None:
        about.check()
    else:
        about = Manifest(name=folder.name, source=f"file:{folder}", **convert.openvino_facts(folder))
    return StoredModel(about.name, folder, about, draft_of(about))


def draft_of(about: Manifest) -> str | None:
    """Return the catalogue's draft for a model of the library, whatever its precision and name."""
    start, _, precision = about.name.rpartition("-")
    entry = catalogue.lookup(about.name)
    if entry is None and precision in catalogue.PRECISIONS:
        entry = catalogue.lookup(start)
    by_digest = map(catalogue.by_digest, about.digests.values())
    entry = entry or next(filter(None, by_digest), None)
    return entry.draft if entry else None


def _version() -> str:
    try:
        return version("localspec")
    except PackageNotFoundError:
        return ""
