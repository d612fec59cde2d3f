"""Import a model from a path, once for each file or folder."""

from __future__ import annotations

import re
from pathlib import Path

from localspec.errors import UnknownModel
from localspec.library import catalogue, storage
from localspec.library.importing import speech
from localspec.library.importing.completeness import use_in_place
from localspec.library.importing.source import GraphMode, ImportSource
from localspec.library.installed import InstalledModels
from localspec.library.locks import locked
from localspec.library.manifest import SourceFile
from localspec.library.model import GRAPH, StoredModel
from localspec.library.progress import Progress

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def from_path(models: InstalledModels, path: Path, progress: Progress, graph: GraphMode) -> StoredModel:
    """Return the model of a GGUF file, or of an OpenVINO, Hugging Face or CTranslate2 folder."""
    if path.is_file():
        return _from_gguf(models, path, progress, graph)
    if (path / GRAPH).is_file():
        return use_in_place(path)
    if path.is_dir():
        return _from_folder(models, path, progress, graph)
    hint = f"Did you mean `hf:{path}`?" if _REPOSITORY.fullmatch(path.as_posix()) else "Check the path"
    raise UnknownModel(f"No such file or folder: `{path}`", hint)


def _from_gguf(models: InstalledModels, path: Path, progress: Progress, graph: GraphMode) -> StoredModel:
    """Import a GGUF file, known by its path, size and time, or elsewhere by its digest."""
    with storage.read_errors(path):
        file = SourceFile.of(path)
        if model := models.by_source_files([file]):
            return model
        digest = storage.digest_of(path, progress, f"Reading {path.name}")
    entry = catalogue.by_digest(digest)
    free = entry is not None and not (models.models / entry.name).exists()
    name = entry.name if entry and free else f"{path.stem}-{digest[:8]}"
    with locked(models.models, name, progress):
        if model := models.by_digest(digest):
            return models.add_source_file(model, file)
        return models.import_model(name, ImportSource.from_local("gguf", path, digest), progress, graph)


def _from_folder(models: InstalledModels, path: Path, progress: Progress, graph: GraphMode) -> StoredModel:
    """Import a Hugging Face or CTranslate2 folder, known by its files' paths, sizes and times."""
    files = [SourceFile.of(file) for file in speech.files_of(path)]
    if model := models.by_source_files(files):
        return model
    name = f"{path.resolve().name}-{storage.digest_of_text(repr(files))[:8]}"
    with locked(models.models, name, progress):
        return models.find(name) or models.import_model(
            name, ImportSource.from_local(speech.folder_format(path), path), progress, graph
        )
