"""Add a file or folder of the user's to the library, under a name of their choice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from localspec.errors import BadValue, UnknownModel, UnsupportedModel
from localspec.library import catalogue, storage
from localspec.library.importing import refusals, speech
from localspec.library.importing.source import ImportSource
from localspec.library.locks import locked
from localspec.library.manifest import Manifest, SourceFile
from localspec.library.model import GRAPH, StoredModel
from localspec.library.paths import check_name
from localspec.library.progress import Progress
from localspec.library.store import Library

WEIGHTS = "openvino_model.bin"


def add_local(
    library: Library, path: Path, name: str, progress: Progress, *, copy: bool = False
) -> StoredModel:
    """Add the GGUF file, or OpenVINO, Hugging Face or CTranslate2 folder `path` as `name`.

    The model is used from there unless `copy`. A file that another model was imported from is not converted
    again. Raises BadValue for a name that is taken or invalid, UnknownModel for a path that does not exist,
    and BrokenModel, UnsupportedModel or StorageError for files that cannot be read.
    """
    check_available(library, name)
    format = _format_of(path)
    with storage.read_errors(path):
        digest = storage.digest_of(path, progress, f"Reading {path.name}") if format == "gguf" else ""
    if (same := library.by_digest(digest)) and not copy:
        model = library.add(name, lambda folder: _link_files(same, name, path, digest, folder), progress)
        if model.manifest.source != f"file:{path.resolve()}":  # another process was faster
            raise _taken(name)
        return model
    with locked(library.models, name, progress), storage.read_errors(path):
        check_available(library, name)
        source = ImportSource.from_local(format, path, digest, copied=copy)
        model = library.import_model(name, source, progress, "optional")
    refusals.report(model.manifest, progress)
    return model


def check_available(library: Library, name: str) -> None:
    """Raise BadValue for a name that is invalid, taken, or a name of the catalogue."""
    check_name(name)
    if not name.isascii():
        raise BadValue(f"`{name}` cannot be a model's name", "Use letters a to z, digits, `-`, `_` and `.`")
    if catalogue.parse_name(name):
        raise BadValue(
            f"`{name}` is a name of the catalogue", f"Choose another `--name`, or `localspec pull {name}`"
        )
    if (library.models / name).exists():
        raise _taken(name)


def _taken(name: str) -> BadValue:
    return BadValue(f"A model called `{name}` already exists", "Choose another `--name`")


def _format_of(path: Path) -> str:
    if path.is_file():
        return "gguf"
    if not path.is_dir():
        raise UnknownModel(f"No such file or folder: `{path}`", "Check the path")
    if not (path / GRAPH).is_file():
        return speech.folder_format(path)
    for name in ("tokenizer.json", WEIGHTS):
        if not (path / name).is_file():
            raise UnsupportedModel(
                f"`{path}` has `{GRAPH}` but no `{name}`", "Copy it from the model's own repository"
            )
    return "openvino"


def _link_files(same: StoredModel, name: str, path: Path, digest: str, into: Path) -> Manifest:
    """Hard-link the files of another model into `into`, or copy them; return the new model's manifest."""
    for file in same.folder.iterdir():
        if file.is_file() and file.name in same.manifest.sizes:
            try:
                os.link(file, into / file.name)
            except OSError:
                shutil.copyfile(file, into / file.name)
    absolute, about = path.resolve(), same.manifest
    inside = bool(about.weights) and (same.folder / about.weights).parent == same.folder
    return msgspec.structs.replace(
        about,
        name=name,
        source=f"file:{absolute}",
        weights=about.weights if inside else str(absolute),
        digests=about.digests if inside else about.digests | {absolute.name: digest},
        history=[*about.history, f"the same file as `{same.name}`"],
        source_files=[] if inside else [SourceFile.of(absolute)],
    )
