"""Add heads to the library: those that were trained here, and published ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec.errors import UnsupportedModel
from localspec.formats.heads import layout
from localspec.formats.heads.layout import Head, HeadShape
from localspec.library import storage
from localspec.library.importing.add_local import check_available
from localspec.library.manifest import Manifest
from localspec.library.model import GRAPH, StoredModel, write_json
from localspec.library.progress import Progress
from localspec.library.store import Library

ARCHITECTURE, TOKENIZER, CARD = "eagle3", "tokenizer.json", "card.json"


def add(library: Library, folder: Path, name: str, target: StoredModel, progress: Progress) -> StoredModel:
    """Add the head in a folder, in the layout of EAGLE-3 or of `speculators`, for `target` as `name`.

    Raises BadValue for a name that is taken or invalid, UnsupportedModel for a head of another model, and
    BrokenModel for damaged files.
    """
    check_available(library, name)
    head, reference = layout.read(folder, target.layer_count()), library.reference(target)

    def fill(into: Path) -> Manifest:
        write(head, name, target, reference, into, progress)
        if head.about:  # what a training elsewhere found
            write_json(into / CARD, head.about | {"target": reference})
        return about_head(name, f"file:{folder.resolve()}", reference, into)

    return library.add(name, fill, progress)


def imported(library: Library, folder: Path, target: StoredModel, progress: Progress) -> StoredModel:
    """Return the head in a folder, added for `target` under a name of its own unless it is there."""
    files = [file for file in sorted(folder.glob("*")) if file.is_file()]
    stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    name = f"{folder.resolve().name}-{storage.digest_of_text(repr([stamps, target.name]))[:8]}"
    return library.find(name) or add(library, folder, name, target, progress)


def write(head: Head, name: str, target: StoredModel, reference: str, into: Path, progress: Progress) -> None:
    """Write all files of a head for `target`, which `reference` names, into a folder.

    These are its weights, the target's tokenizer, and graphs if the target has one. Raises as `add` does.
    """
    about = {"target": reference, "tokenizer": target.manifest.digests.get(TOKENIZER), **head.about}
    _check(head.shape, about, name, target)
    layout.write(replace(head, about=about), into)
    shutil.copyfile(target.folder / TOKENIZER, into / TOKENIZER)
    if graphs := target.files_in("openvino"):
        from localspec.formats.heads import graph

        with progress.step(f"Writing the graphs of `{name}`"):
            graph.write(head, graphs / GRAPH, into)


def about_head(name: str, source: str, target: str, folder: Path, *, chosen: bool = True) -> Manifest:
    """Return the manifest of a head for `target` whose files lie in a folder.

    One that is not `chosen` is left out by `--draft auto`.
    """
    shape = layout.read_shape(folder)
    return Manifest(
        name=name,
        source=source,
        target=target if chosen else "",
        weights=".",
        precision="INT8" if (folder / GRAPH).is_file() else "FP16",
        architecture=ARCHITECTURE,
        context=shape.context,
        history=[f"a head for {target}"],
    )


def check_fits(head: StoredModel, target: StoredModel) -> HeadShape:
    """Return the shape of a head in the library.

    Raises UnsupportedModel if it was trained for another model than `target`, BrokenModel for damaged files.
    """
    shape = layout.read_shape(head.folder, target.layer_count())
    _check(shape, layout.noted(head.folder), head.name, target)
    return shape


def _check(shape: HeadShape, about: dict[str, Any], name: str, target: StoredModel) -> None:
    layers, width = target.shape()
    digest = target.manifest.digests.get(TOKENIZER)
    reason = ""
    if width and width != shape.tapped_width:
        reason = f"it reads states of {shape.tapped_width} columns, and those of `{target.name}` have {width}"
    elif layers and shape.taps[-1] > layers:
        reason = f"it reads layer {shape.taps[-1]}, and `{target.name}` has {layers} layers"
    elif target.tokenizer().get_vocab_size() > shape.vocab:
        reason = f"it has {shape.vocab:,} tokens, and `{target.name}` more"
    elif about.get("tokenizer") and digest and about["tokenizer"] != digest:
        reason = f"`{target.name}` has another vocabulary"
    if reason:
        raise not_for(f"The head `{name}`", about, target, reason, f"localspec train-head {target.name}")


def not_for(
    subject: str, about: dict[str, Any], target: StoredModel, reason: str, command: str
) -> UnsupportedModel:
    """Return the error for a head or hints of another model; `command` trains one for this one."""
    trained = f", trained for `{about['target']}`," if about.get("target") else ""
    return UnsupportedModel(
        f"{subject}{trained} cannot draft for `{target.name}`: {reason}", f"Train one: `{command}`"
    )
