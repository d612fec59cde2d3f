"""When a folder is a whole model, and what is known of it then."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from localspec.errors import UnsupportedModel
from localspec.library import catalogue, manifest, storage
from localspec.library.importing import convert
from localspec.library.manifest import Manifest
from localspec.library.model import GRAPH, Model
from localspec.library.progress import Progress


def described(found: Manifest, partial: Path, progress: Progress) -> Manifest:
    """Add what is known once the files are there: their sizes and digests, the time, our version."""
    files = Path(found.folder) if found.folder else partial
    sizes = {path.name: path.stat().st_size for path in sorted(files.iterdir()) if path.is_file()}
    own = {} if found.folder else {name: storage.digest_of(files / name, progress) for name in sizes}
    return msgspec.structs.replace(
        found, sizes=sizes, digests={**own, **found.digests}, created=manifest.now(), localspec=_version()
    )


def complete(folder: Path, found: Manifest) -> Model | None:
    """Return the model unless a file of it is missing or has another size."""
    files = Path(found.folder) if found.folder else folder
    whole = all(storage.size_of(files / name) == size for name, size in found.sizes.items())
    if found.name != folder.name or "tokenizer.json" not in found.sizes or not whole:
        return None
    return Model(found.name, files, found, draft_of(found))


def in_place(path: Path) -> Model:
    """Use an OpenVINO folder where it is."""
    if not (path / "tokenizer.json").is_file():
        raise UnsupportedModel(
            f"`{path}` has `{GRAPH}` and no `tokenizer.json`", "Copy it from the model's own repository"
        )
    whole = path.resolve()
    found = manifest.read(whole)
    if found is not None:
        found.check()
    else:
        found = Manifest(name=whole.name, source=f"file:{whole}", **convert.described(whole))
    return Model(found.name, whole, found, draft_of(found))


def draft_of(found: Manifest) -> str | None:
    """Return the catalogue's draft for a model of the library, whatever its precision and name."""
    start, _, precision = found.name.rpartition("-")
    entry = catalogue.lookup(found.name)
    if entry is None and precision in catalogue.PRECISIONS:
        entry = catalogue.lookup(start)
    known = map(catalogue.by_digest, found.digests.values())
    entry = entry or next(filter(None, known), None)
    return entry.draft if entry else None


def _version() -> str:
    try:
        return version("localspec")
    except PackageNotFoundError:
        return ""
