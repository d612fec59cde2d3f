"""`localspec import`: add a model that is on this machine already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.cli import completion, console, options
from localspec.cli.models.listing import model_row
from localspec.cli.models.pull import without_source
from localspec.cli.sizes import format_bytes
from localspec.disk import given
from localspec.errors import BadValue

if TYPE_CHECKING:
    from localspec.library import Library, Progress, StoredModel

HELP = """Add a GGUF file, or an OpenVINO, Hugging Face or CTranslate2 folder, to the library.

The folder of a head, in the layout of EAGLE-3 or of `speculators`, becomes a draft for the model `--target`.

The files stay where they are and are used from there, unless you give `--copy`. GGUF files and Hugging Face
folders of the families that localspec knows get an OpenVINO graph. With `--drop-source` the library needs
nothing but that graph: you may delete the file."""
EPILOG = "Example: localspec import model.gguf --name coder"


def import_model(
    path: Annotated[Path, typer.Argument(help="A .gguf file, or a folder.")],
    name: Annotated[str, typer.Option(help="Name in the library.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy the files into the library.")] = False,
    drop: Annotated[
        bool, typer.Option("--drop-source", help="Keep only the OpenVINO graph in the library.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(help="Model that a head drafts for.", autocompletion=completion.models, metavar="MODEL"),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Add the model and print its formats and sizes."""
    from localspec.cli.progress import Terminal
    from localspec.formats.heads import layout
    from localspec.library import Library
    from localspec.library.importing.add_local import add_local
    from localspec.library.importing.addons import kind_of

    library = Library()
    with Terminal() as progress:
        folder = given.path_of(path)
        if target or layout.is_head(folder) or kind_of(folder):
            model = add_head(library, folder, name, target, progress)
        else:
            model = add_local(library, folder, name, progress, copy=copy)
        if drop:
            model = without_source(library, model, progress)
    row = model_row(model, library)
    if as_json:
        console.print_json(row)
        return
    elsewhere = f", {format_bytes(row['elsewhere'])} elsewhere" if row["elsewhere"] else ""
    console.print_text(
        f"{model.name}: {', '.join(row['formats'])}; {format_bytes(row['bytes'])} in the library{elsewhere}"
    )
    commands = {
        "speech": f"transcribe AUDIO --model {model.name}",
        "head": f"chat {target}  # --draft auto uses it",
        "k-forcing": f"chat {target} --draft k_forcing:name={model.name}",
        "pipo": f"chat {target} --decoding pipo:name={model.name}",
    }
    console.print_text(f"hint: localspec {commands.get(row['kind'], f'chat {model.name}')}")


def add_head(library: Library, path: Path, name: str, target: str | None, progress: Progress) -> StoredModel:
    """Add the head in a folder; raises BadValue without a target, or for a folder that holds no head."""
    from localspec.formats.heads import layout
    from localspec.library.importing import addons, heads
    from localspec.library.model import FORMATS

    addon = addons.kind_of(path)
    if not (layout.is_head(path) or addon):
        raise BadValue(f"`{path}` holds no head, and `--target` is for heads", "Leave it out")
    if target is None:
        raise BadValue(f"`{path}` holds a head", "Name the model that it drafts for: `--target MODEL`")
    model = library.resolve(target, progress, FORMATS)
    if addon:
        return addons.add(library, path, name, model, progress)
    return heads.add(library, path, name, model, progress)
