"""`localspec verify`: are the files of the library what they were?"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from localspec.errors import UnknownModel, suggestion

HELP = """Read the files of a model, or of all, and compare them to their sizes and digests.

Nothing is changed. The exit code is 1 when something is wrong."""
EPILOG = "Example: localspec verify smollm2-135m"


def verify(
    model: Annotated[str | None, typer.Argument(help="A name of the library.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Print a line for each model, and one for each file that is wrong."""
    from localspec.library import Library, Terminal
    from localspec.library.checking import problems

    library = Library()
    known = library.known()
    chosen = known
    if model is not None:
        found = library.find(model)
        chosen = [found] if found else [one for one in known if one.name == model]
        if not chosen:
            near = suggestion(model, [one.name for one in known])
            raise UnknownModel(f"`{model}` is not in the library", near)
    results: list[tuple[str, int, list[str]]] = []
    with Terminal() as progress:
        for one in chosen:
            read, wrong = problems(one, progress)
            results.append((one.name, read, [f"{bad.file} {bad.what}" for bad in wrong]))
    if as_json:
        keys = ("name", "read", "wrong")
        print(json.dumps([dict(zip(keys, one, strict=True)) for one in results], ensure_ascii=False))
    for name, read, told in () if as_json else results:
        print(f"{name}: " + ("; ".join(told) if told else f"good, {read} files read"))
    if any(told for _, _, told in results):
        raise typer.Exit(1)
