"""Models that the user brings: a file or folder under a name of their choice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from localspec.errors import BadValue, UnknownModel, UnsupportedModel
from localspec.library import catalogue, storage
from localspec.library.importing.source import Arrival
from localspec.library.locks import locked
from localspec.library.manifest import Manifest, Place
from localspec.library.model import GRAPH, Model
from localspec.library.progress import Progress
from localspec.library.store import Library, check_name

WEIGHTS = "openvino_model.bin"


def adopt(library: Library, path: Path, name: str, progress: Progress, *, copy: bool = False) -> Model:
    """Add the GGUF file, OpenVINO folder or Hugging Face folder `path` as `name`.

    It stays where it is and is used from there unless `copy`. What another model was made of already is not
    converted again. Raises BadValue for a name that is taken or cannot be one, UnknownModel for a path that
    is none of them, and what reading it raises.
    """
    check_free(library, name)
    kind = _kind(path)
    with storage.reading(path):
        digest = storage.digest_of(path, progress, f"Reading {path.name}") if kind == "gguf" else ""
    if (same := library.by_digest(digest)) and not copy:
        found = library.add(name, lambda into: _linked(same, name, path, digest, into), progress)
        if found.manifest.source != f"file:{path.resolve()}":  # another process was first
            raise _taken(name)
        return found
    with locked(library.models, name, progress), storage.reading(path):
        check_free(library, name)
        return library.import_arrival(name, Arrival.given(kind, path, digest, copied=copy), progress, "may")


def check_free(library: Library, name: str) -> None:
    """Raise BadValue for a name that cannot be one, is taken, or means a model of the catalogue."""
    check_name(name)
    if not name.isascii():
        raise BadValue(f"`{name}` cannot be a model's name", "Use letters a to z, digits, `-`, `_` and `.`")
    if catalogue.asked(name):
        raise BadValue(
            f"`{name}` is a name of the catalogue", f"Choose another `--name`, or `localspec pull {name}`"
        )
    if (library.models / name).exists():
        raise _taken(name)


def _taken(name: str) -> BadValue:
    return BadValue(f"There is a model called `{name}` already", "Choose another `--name`")


def _kind(path: Path) -> str:
    if path.is_file():
        return "gguf"
    if not path.is_dir():
        raise UnknownModel(f"There is no file or folder `{path}`", "Check the path")
    if not (path / GRAPH).is_file():
        return "safetensors"
    for name in ("tokenizer.json", WEIGHTS):
        if not (path / name).is_file():
            raise UnsupportedModel(
                f"`{path}` has `{GRAPH}` and no `{name}`", "Copy it from the model's own repository"
            )
    return "openvino"


def _linked(same: Model, name: str, path: Path, digest: str, into: Path) -> Manifest:
    """Give `into` the files of another model under new names of the same bytes; copies where that fails."""
    for file in same.folder.iterdir():
        if file.is_file() and file.name in same.manifest.sizes:
            try:
                os.link(file, into / file.name)
            except OSError:
                shutil.copyfile(file, into / file.name)
    whole, about = path.resolve(), same.manifest
    inside = bool(about.weights) and (same.folder / about.weights).parent == same.folder
    return msgspec.structs.replace(
        about,
        name=name,
        source=f"file:{whole}",
        weights=about.weights if inside else str(whole),
        digests=about.digests if inside else about.digests | {whole.name: digest},
        history=[*about.history, f"the same file as `{same.name}`"],
        places=[] if inside else [Place.of(whole)],
    )
