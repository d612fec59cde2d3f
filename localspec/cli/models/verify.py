"""`localspec verify`: are the files of the library what they were?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli.models.show import absent

if TYPE_CHECKING:
    from localspec.library import Library, Model, Progress

HELP = """Read the files of a model, or of all, and compare them to their sizes and digests.

Nothing is changed. The exit code is 1 when something is wrong."""
EPILOG = "Example: localspec verify smollm2-135m"


def verify(
    model: Annotated[str | None, typer.Argument(help="A name of the library.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Print a line for each model, and after its name each file that is wrong."""
    from localspec.library import Library, Terminal
    from localspec.library.manifest import FILE
    from localspec.library.verify import unreadable

    library = Library()
    known = library.known()
    damaged = {path.name: path for path in unreadable(library) if model in (None, path.name)}
    if model is not None:
        known = chosen(library, model, known)
        if not (known or damaged):
            raise absent(library, model)
    with Terminal() as progress:
        found = [checked(one, progress) for one in known]
    found += [
        {"name": name, "read": 0, "wrong": [f"{path / FILE} is missing or damaged"], "newer": False}
        for name, path in damaged.items()
    ]
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    for one in () if as_json else found:
        print(f"{one['name']}: {in_words(one)}")
    if any(one["wrong"] for one in found):
        raise typer.Exit(1)


def chosen(library: Library, name: str, known: list[Model]) -> list[Model]:
    """Return the model of that name or alias, whole or not, alone in a list; empty when there is none."""
    exact = [one for one in known if one.name == name]
    found = None if exact else library.find(name)
    return [found] if found else exact[:1]


def checked(model: Model, progress: Progress) -> dict[str, Any]:
    """Return how many files of a model were read and what is wrong with which."""
    from localspec.library.verify import problems

    newer = model.manifest.newer
    read, wrong = (0, []) if newer else problems(model, progress)
    told = [f"{bad.file} {bad.what}" for bad in wrong]
    return {"name": model.name, "read": read, "wrong": told, "newer": newer}


def in_words(found: dict[str, Any]) -> str:
    """Return the verdict on a model as one line."""
    if found["newer"]:
        return "not checked, a newer localspec wrote it"
    return "; ".join(found["wrong"]) or f"good, {found['read']} files read"
