"""Add hints of K-Forcing to the library, and find those that a name or a folder means."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from localspec.disk import given
from localspec.errors import UnknownName, UnsupportedModel
from localspec.formats.k_forcing import layout
from localspec.formats.k_forcing.layout import MODEL_TYPE, StoredHints
from localspec.library.catalogue import K_FORCING
from localspec.library.importing.add_local import check_available
from localspec.library.importing.heads import CARD, TOKENIZER, not_for
from localspec.library.manifest import Manifest
from localspec.library.model import StoredModel, write_json
from localspec.library.progress import Progress
from localspec.library.store import Library


def add(library: Library, folder: Path, name: str, target: StoredModel, progress: Progress) -> StoredModel:
    """Add the hints in a folder for `target` as `name`.

    Raises BadValue for a name that is taken or invalid, UnsupportedModel for hints of another model, and
    BrokenModel for damaged files.
    """
    check_available(library, name)
    _check(folder, name, target)
    hints, reference = layout.read(folder), library.reference(target)

    def fill(into: Path) -> Manifest:
        write(hints, target, reference, into)
        if hints.about:  # what a training elsewhere found
            write_json(into / CARD, hints.about | {"target": reference})
        return about_hints(name, f"file:{folder.resolve()}", target)

    return library.add(name, fill, progress)


def write(hints: StoredHints, target: StoredModel, reference: str, into: Path) -> None:
    """Write hints for `target`, which `reference` names, and the target's tokenizer into a folder."""
    about = {"target": reference, "tokenizer": target.manifest.digests.get(TOKENIZER), **hints.about}
    layout.write(replace(hints, about=about), into)
    shutil.copyfile(target.folder / TOKENIZER, into / TOKENIZER)


def about_hints(name: str, source: str, target: StoredModel) -> Manifest:
    """Return the manifest of hints for `target`; `--draft auto` never takes them."""
    return Manifest(
        name=name,
        source=source,
        weights=".",
        precision="FP16",
        architecture=MODEL_TYPE,
        context=target.manifest.context,
        history=[f"hints for {target.name}"],
    )


def folder_of(name: str, target: StoredModel, library: Library) -> Path:
    """Return the folder of the hints `name`, of the library or a folder itself, for `target`.

    Raises UnknownName for a name without any, UnsupportedModel for a model of another kind and for hints
    of another model than `target`, and BrokenModel for damaged files.
    """
    own, path = library.find(name), given.path_of(name)
    folder = own.folder if own else path
    if not (own or given.exists(path)):
        known = [model.name for model in library.all() if model.kind == K_FORCING]
        raise UnknownName(f"No hints are called `{name}`", name, known)
    if not layout.is_hints(folder):
        raise UnsupportedModel(
            f"`{name}` holds no hints of K-Forcing", f"Train some: `{command(target.name)}`"
        )
    _check(folder, name, target)
    return folder


def command(target: str) -> str:
    """Return what to type to train hints for a model."""
    return f"localspec train-head {target} --kind {K_FORCING}"


def _check(folder: Path, name: str, target: StoredModel) -> None:
    shape, about = layout.read_shape(folder), layout.noted(folder)
    layers, width = target.shape()
    digest = target.manifest.digests.get(TOKENIZER)
    reason = ""
    if width and width != shape.width:
        reason = f"their target has {shape.width} columns, and `{target.name}` has {width}"
    elif layers and layers != shape.layers:
        reason = f"their target has {shape.layers} layers, and `{target.name}` has {layers}"
    elif about.get("tokenizer") and digest and about["tokenizer"] != digest:
        reason = f"`{target.name}` has another vocabulary"
    if reason:
        raise not_for(f"The hints `{name}`", about, target, reason, command(target.name))
