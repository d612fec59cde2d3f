"""`localspec rm`: a model leaves the library."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from localspec.errors import BadValue, UnknownModel, suggestion

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
    from localspec.cli.listing import in_words
    from localspec.library import Library, Terminal
    from localspec.library.checking import on_disk

    library = Library()
    found = library.find(model)
    if found is None:
        known = [one.name for one in library.all()]
        raise UnknownModel(f"`{model}` is not in the library", suggestion(model, known))
    own, elsewhere = on_disk(found, library.home)
    drafts = [draft.name for draft in library.drafts_for(found)]
    if not (yes or as_json):
        if not sys.stdin.isatty():
            raise BadValue(f"Nobody can be asked whether `{found.name}` may go", "Give `--yes`")
        told = f"; {', '.join(drafts)} guesses for it" if drafts else ""
        if not typer.confirm(f"Delete {found.name} ({in_words(own)}){told}?", err=True):
            raise typer.Exit(1)
    with Terminal() as progress:
        freed = library.remove(found.name, progress)
    if as_json:
        print(json.dumps({"name": found.name, "freed": freed, "elsewhere": elsewhere}))
        return
    kept = f"; {in_words(elsewhere)} in {found.folder if found.manifest.folder else 'its own place'} stay"
    print(f"{found.name} is gone, {in_words(freed)} are free" + (kept if elsewhere else ""))
