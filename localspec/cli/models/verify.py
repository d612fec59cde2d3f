"""`localspec verify`: check the files of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import completion, console, options
from localspec.cli.models.show import missing_error

if TYPE_CHECKING:
    from localspec.library import Library, Progress, StoredModel

HELP = """Check the sizes and checksums of the files of a model, or of all models.

Nothing is changed. The exit code is 1 if a file is wrong."""
EPILOG = "Example: localspec verify smollm2-135m"


def verify(
    model: Annotated[
        str | None,
        typer.Argument(help="Name in the library.", autocompletion=completion.installed, show_default="all"),
    ] = None,
    as_json: options.AsJsonList = False,
) -> None:
    """Print a line for each model, with its wrong files."""
    from localspec.cli.progress import Terminal
    from localspec.library import Library
    from localspec.library.manifest import FILE
    from localspec.library.verify import unreadable

    library = Library()
    known = library.known()
    damaged = {path.name: path for path in unreadable(library) if model in (None, path.name)}
    if model is not None:
        known = named_model(library, model, known)
        if not (known or damaged):
            raise missing_error(library, model)
    with Terminal() as progress:
        results = [check(each, progress) for each in known]
    results += [
        {"name": name, "read": 0, "wrong": [f"{path / FILE} is missing or damaged"], "newer": False}
        for name, path in damaged.items()
    ]
    if as_json:
        console.print_json(results)
    for result in () if as_json else results:
        console.print_text(f"{result['name']}: {format_result(result)}")
    if any(result["wrong"] for result in results):
        raise typer.Exit(1)


def named_model(library: Library, name: str, known: list[StoredModel]) -> list[StoredModel]:
    """Return the model with a name or alias, even if it is incomplete, as a list of one or none."""
    exact = [model for model in known if model.name == name]
    by_alias = None if exact else library.find(name)
    return [by_alias] if by_alias else exact[:1]


def check(model: StoredModel, progress: Progress) -> dict[str, Any]:
    """Return the number of files read, and each wrong file with its problem."""
    from localspec.library.verify import problems

    newer = model.manifest.newer
    read, wrong = (0, []) if newer else problems(model, progress)
    lines = [f"{problem.file} {problem.what}" for problem in wrong]
    return {"name": model.name, "read": read, "wrong": lines, "newer": newer}


def format_result(result: dict[str, Any]) -> str:
    """Return the result for a model as one line."""
    if result["newer"]:
        return "not checked, written by a newer localspec"
    return "; ".join(result["wrong"]) or f"good, {result['read']} files read"
