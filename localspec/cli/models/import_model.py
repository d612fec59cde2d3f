"""`localspec import`: add a model that is on this machine already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from localspec.cli import console, options
from localspec.cli.models.listing import model_row
from localspec.cli.models.pull import without_source
from localspec.cli.sizes import format_bytes
from localspec.disk import given

HELP = """Add a GGUF file, or an OpenVINO, Hugging Face or CTranslate2 folder, to the library.

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
    as_json: options.AsJson = False,
) -> None:
    """Add the model and print its formats and sizes."""
    from localspec.cli.progress import Terminal
    from localspec.library import Library
    from localspec.library.importing.add_local import add_local

    library = Library()
    with Terminal() as progress:
        model = add_local(library, given.path_of(path), name, progress, copy=copy)
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
    command = f"transcribe AUDIO --model {model.name}" if row["kind"] == "speech" else f"chat {model.name}"
    console.print_text(f"hint: localspec {command}")
