"""`localspec rm`: a model leaves the library."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.cli.models.show import absent
from localspec.errors import BadValue

if TYPE_CHECKING:
    from localspec.library import Library, Model

HELP = """Delete a model, after asking.

What another model needs stays, and so does what lies elsewhere: a file that you imported without `--copy`,
and the cache that all Hugging Face tools share."""
EPILOG = "Example: localspec rm smollm2-135m --yes"


def remove(
    model: Annotated[str, typer.Argument(help="A name of the library.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; implies --yes.")] = False,
) -> None:
    """Delete the model and print the bytes that are free now."""
    from localspec.cli.models.listing import in_words
    from localspec.library import Library, Terminal
    from localspec.library.verify import disk_usage

    library = Library()
    found = library.find(model) or next((one for one in library.known() if one.name == model), None)
    if found is None:
        raise absent(library, model)
    own, elsewhere = disk_usage(found, library.home)
    if not (yes or as_json):
        ask(found, library, in_words(own))
    with Terminal() as progress:
        freed = library.remove(found.name, progress)
    if as_json:
        print(json.dumps({"name": found.name, "freed": freed, "elsewhere": elsewhere}))
        return
    place = found.manifest.folder or found.manifest.weights
    kept = f"; {in_words(elsewhere)} stay in {place}"
    print(f"{found.name} is gone, {in_words(freed)} are free" + (kept if elsewhere else ""))


def ask(model: Model, library: Library, size: str) -> None:
    """Ask whether a model may go; raises BadValue where nobody can be asked, Exit for a no."""
    if not sys.stdin.isatty():
        raise BadValue(f"Nobody can be asked whether `{model.name}` may go", "Give `--yes`")
    drafts = ", ".join(draft.name for draft in library.drafts_for(model))
    told = f"; {drafts} guesses for it" if drafts else ""
    if not typer.confirm(f"Delete {model.name} ({size}){told}?", err=True):
        raise typer.Exit(1)
