"""Add what a target's own passes read to the library, and find it: hints of K-Forcing, weights of PIPO."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.disk import given
from localspec.errors import UnknownModel, UnknownName, UnsupportedModel
from localspec.formats.k_forcing import layout as k_forcing
from localspec.formats.pipo import layout as pipo
from localspec.library.catalogue import K_FORCING, PIPO
from localspec.library.importing.add_local import check_available
from localspec.library.importing.heads import CARD, TOKENIZER, not_for
from localspec.library.manifest import Manifest
from localspec.library.model import StoredModel, write_json
from localspec.library.progress import Progress
from localspec.library.store import Library

Stored = k_forcing.StoredHints | pipo.StoredPairs


@dataclass(frozen=True)
class Kind:
    """A kind of addon: its name, what it is in messages, and the functions of its layout."""

    name: str
    what: str
    holds: Callable[[Path], bool]
    read: Callable[[Path], Stored]
    read_shape: Callable[[Path], k_forcing.HintShape | pipo.PairShape]
    noted: Callable[[Path], dict[str, Any]]

    def command(self, target: str) -> str:
        """Return what to type to train one for a model."""
        return f"localspec train-head {target} --kind {self.name}"


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(K_FORCING, "hints", k_forcing.is_hints, k_forcing.read, k_forcing.read_shape, k_forcing.noted),
        Kind(PIPO, "weights of PIPO", pipo.is_pairs, pipo.read, pipo.read_shape, pipo.noted),
    )
}


def kind_of(folder: Path) -> Kind | None:
    """Return the kind of addon in a folder, None if it holds none."""
    return next((kind for kind in KINDS.values() if kind.holds(folder)), None)


def add(library: Library, folder: Path, name: str, target: StoredModel, progress: Progress) -> StoredModel:
    """Add the addon in a folder for `target` as `name`.

    Raises BadValue for a name that is taken or invalid, UnsupportedModel for one of another model, and
    BrokenModel for damaged files.
    """
    kind = kind_of(folder)
    assert kind is not None
    check_available(library, name)
    _check(kind, folder, name, target)
    stored, reference = kind.read(folder), library.reference(target)

    def fill(into: Path) -> Manifest:
        write(stored, target, reference, into, progress)
        if stored.about:  # what a training elsewhere found
            write_json(into / CARD, stored.about | {"target": reference})
        return manifest(kind.name, name, f"file:{folder.resolve()}", target)

    return library.add(name, fill, progress)


def write(stored: Stored, target: StoredModel, reference: str, into: Path, progress: Progress) -> None:
    """Write an addon for `target`, which `reference` names, and the target's tokenizer into a folder.

    It gets a graph if the target has one, and the weights that it was made of.
    """
    about = {"target": reference, "tokenizer": target.manifest.digests.get(TOKENIZER), **stored.about}
    if isinstance(stored, k_forcing.StoredHints):
        k_forcing.write(replace(stored, about=about), into)
    else:
        pipo.write(replace(stored, about=about), into)
    _write_graphs(stored, target, into, progress)
    shutil.copyfile(target.folder / TOKENIZER, into / TOKENIZER)


def _write_graphs(stored: Stored, target: StoredModel, into: Path, progress: Progress) -> None:
    """Write the graphs of an addon, or say why there are none."""
    from localspec.formats.k_forcing import graph as hint_graph
    from localspec.formats.pipo import graph as pair_graph

    weights = target.files_in("gguf") or target.files_in("safetensors")
    if not target.files_in("openvino") or weights is None:
        return
    try:
        with progress.step("Writing the OpenVINO graph", stored.shape.layers, "layer"):
            if isinstance(stored, k_forcing.StoredHints):
                hint_graph.write(stored, weights, into, progress.advance)
            else:
                pair_graph.write(stored, weights, into, progress.advance)
    except UnsupportedModel as error:
        progress.say(f"They run with `--engine torch` alone: {error}")


def manifest(kind: str, name: str, source: str, target: StoredModel) -> Manifest:
    """Return the manifest of an addon for `target`; `--draft auto` never takes it."""
    return Manifest(
        name=name,
        source=source,
        weights=".",
        precision="FP16",
        architecture=kind,
        context=target.manifest.context,
        history=[f"{KINDS[kind].what} for {target.name}"],
    )


def folder_of(kind: str, name: str, target: StoredModel, library: Library) -> Path:
    """Return the folder of the addon `name`, of the library or a folder itself, for `target`.

    An empty name is what a training for `target` is called without one. Raises UnknownName for a name without
    any, UnsupportedModel for a model of another kind and for one of another model than `target`, and
    BrokenModel for damaged files.
    """
    about = KINDS[kind]
    train = f"Train some: `{about.command(target.name)}`"
    if not name and library.find(name := f"{target.name}-{kind}") is None:
        raise UnsupportedModel(f"`{target.name}` has no {about.what}: `{name}` is not in the library", train)
    own, path = library.find(name), given.path_of(name)
    folder = own.folder if own else path
    if not (own or given.exists(path)):
        what = f"No {about.what} are called `{name}`"
        known = [model.name for model in library.all() if model.kind == kind]
        raise UnknownName(what, name, known) if known else UnknownModel(what, train)
    if not about.holds(folder):
        raise UnsupportedModel(f"`{name}` holds no {about.what}", train)
    _check(about, folder, name, target)
    return folder


def _check(kind: Kind, folder: Path, name: str, target: StoredModel) -> None:
    shape, about = kind.read_shape(folder), kind.noted(folder)
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
        raise not_for(f"The {kind.what} `{name}`", about, target, reason, kind.command(target.name))
