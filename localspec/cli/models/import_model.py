"""`localspec import`: a model that is on this machine already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

HELP = """Add a GGUF file, an OpenVINO folder or a Hugging Face folder to the library.

It stays where it is and is used from there, unless `--copy`. GGUF files and Hugging Face folders of families
that localspec knows get an OpenVINO graph."""
EPILOG = "Example: localspec import model.gguf --name coder"


def import_model(
    path: Annotated[Path, typer.Argument(help="A .gguf file, or a folder.")],
    name: Annotated[str, typer.Option(help="What it is called.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy the files into the library.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Add it and print where it is."""
    from localspec.cli.models.listing import described, in_words
    from localspec.library import Library, Terminal
    from localspec.library.importing.add_local import add_local

    library = Library()
    with Terminal() as progress:
        found = add_local(library, path.expanduser(), name, progress, copy=copy)
    about = described(found, library)
    if as_json:
        print(json.dumps(about, ensure_ascii=False))
        return
    print(f"{found.name}: {', '.join(about['forms'])}; {in_words(about['bytes'])} here", end="")
    print(f", {in_words(about['elsewhere'])} elsewhere" if about["elsewhere"] else "")
    print(f"hint: localspec chat {found.name}")
