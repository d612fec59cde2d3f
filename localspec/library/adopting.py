"""Models that the user brings: a file or folder under a name of their choice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from localspec.errors import BadValue, UnknownModel
from localspec.library import disk
from localspec.library.arrival import Arrival
from localspec.library.locks import locked
from localspec.library.manifest import Manifest
from localspec.library.model import GRAPH, Model
from localspec.library.progress import Progress
from localspec.library.store import Library, check_name


def adopt(library: Library, path: Path, name: str, progress: Progress, *, copy: bool = False) -> Model:
    """Add the GGUF file, OpenVINO folder or Hugging Face folder `path` as `name`.

    It stays where it is and is used from there unless `copy`. What another model was made of already is not
    converted again. Raises BadValue for a name that is taken or cannot be one, UnknownModel for a path that
    is none of them, and what reading it raises.
    """
    check_name(name)
    if library.find(name):
        raise BadValue(f"There is a model called `{name}` already", "Choose another `--name`")
    kind = _kind(path)
    with disk.reading(path):
        digest = disk.digest_of(path, progress, f"Reading {path.name}") if kind == "gguf" else ""
    if (same := library.by_digest(digest)) and not copy:
        return library.add(name, lambda into: _linked(same, name, path, into), progress)
    with locked(library.models, name, progress):
        arrival = Arrival.given(kind, path, digest, copied=copy)
        return library.import_arrival(name, arrival, progress, "may")


def _kind(path: Path) -> str:
    if path.is_file():
        return "gguf"
    if (path / GRAPH).is_file():
        return "openvino"
    if path.is_dir():
        return "safetensors"
    raise UnknownModel(f"There is no file or folder `{path}`", "Check the path")


def _linked(same: Model, name: str, path: Path, into: Path) -> Manifest:
    """Give `into` the files of another model under new names of the same bytes; copies where that fails."""
    for file in same.folder.iterdir():
        if file.is_file() and file.name in same.manifest.sizes:
            try:
                os.link(file, into / file.name)
            except OSError:
                shutil.copyfile(file, into / file.name)
    own = same.folder / same.manifest.weights
    weights = same.manifest.weights if own.parent == same.folder else str(path.resolve())
    return msgspec.structs.replace(
        same.manifest,
        name=name,
        source=f"file:{path.resolve()}",
        weights=weights,
        history=[*same.manifest.history, f"the same file as `{same.name}`"],
        places=[],
    )
