"""Keep only the OpenVINO graph of a model, without the GGUF or safetensors that it was made from."""

from __future__ import annotations

from pathlib import Path

import msgspec

from localspec.errors import BadValue
from localspec.formats.files import weight_files
from localspec.library import storage
from localspec.library.download import cache
from localspec.library.installed import InstalledModels
from localspec.library.locks import locked
from localspec.library.manifest import Manifest
from localspec.library.model import StoredModel
from localspec.library.progress import Progress
from localspec.library.sources import Source
from localspec.library.verify import check

SUFFIXES = (".gguf", ".safetensors")


def drop_source(models: InstalledModels, model: StoredModel, progress: Progress) -> tuple[StoredModel, int]:
    """Return a model without the files that its graph was made from, and the bytes that were freed.

    The graph is read and compared to its checksums first. Then the manifest forgets the source, and then its
    files are deleted, so a kill between the two leaves a complete model. A file of the user's, and one that
    another model needs, stays. Raises BadValue for a model without a graph, BrokenModel for a damaged one.
    """
    if model.files_in("openvino") is None:
        raise BadValue(
            f"`{model.name}` has no OpenVINO graph: its source is all there is", "Leave out `--drop-source`"
        )
    with locked(models.models, model.name, progress), storage.storage_errors(models.models):
        kept = _without_source(model.manifest)
        graph = StoredModel(model.name, model.folder, kept, model.draft)
        check(graph, progress)
        files = _own_files(models, model, kept)
        if kept != model.manifest:
            kept.write(models.models / model.name)
        return graph, sum(_delete(model, file) for file in files)


def _without_source(about: Manifest) -> Manifest:
    """Return a manifest that knows the source only by its sha256, and by name as `dropped`."""
    if not about.weights:
        return about
    gone = {name for name in about.sizes if name == about.weights or _is_part(name, about.weights)}
    return msgspec.structs.replace(
        about,
        weights="",
        source_files=[],
        sizes={name: size for name, size in about.sizes.items() if name not in gone},
        samples={name: about.samples[name] for name in about.samples if name in about.sizes.keys() - gone},
        dropped=about.weights,
    )


def _is_part(name: str, weights: str) -> bool:
    """Return whether a file of the model's folder holds weights of a Hugging Face folder that was copied."""
    return weights == "." and name.endswith(".safetensors")


def _own_files(models: InstalledModels, model: StoredModel, kept: Manifest) -> list[Path]:
    """List the files of a model's source that localspec has downloaded or copied, and no other model uses.

    Those that an earlier call forgot, but was killed before it deleted them, are among them.
    """
    about, folder = model.manifest, model.folder
    inside = [] if about.folder else [path for path in sorted(folder.iterdir()) if path.suffix in SUFFIXES]
    ours = [path for path in inside if path.name not in kept.sizes]
    path = folder / about.weights
    if not (about.weights and path.is_absolute() and about.source.startswith("hf:")) or path == folder:
        return ours
    used = {known.folder / known.manifest.weights for known in models.known() if known.name != model.name}
    in_cache = [path] if path.is_file() else weight_files(path)
    return [*ours, *(file for file in in_cache if not {file, file.parent} & used)]


def _delete(model: StoredModel, file: Path) -> int:
    """Delete a file and return the bytes that this frees."""
    if file.parent != model.folder:
        return cache.drop_file(Source.parse(model.manifest.source), file)
    status = file.stat()
    file.unlink()
    return status.st_size if status.st_nlink == 1 else 0
