"""`localspec rm`: delete a model of the library."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.cli import completion, console
from localspec.cli.models.show import missing_error
from localspec.cli.sizes import format_bytes
from localspec.errors import BadValue

if TYPE_CHECKING:
    from localspec.library import Library, StoredModel

HELP = """Delete a model, after asking.

Files that another model needs stay, and so do files elsewhere: those that you imported without `--copy`, and
the Hugging Face cache."""
EPILOG = "Example: localspec rm smollm2-135m --yes"


def remove(
    model: Annotated[str, typer.Argument(help="Name in the library.", autocompletion=completion.installed)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; implies --yes.")] = False,
) -> None:
    """Delete the model and print the size of what was freed."""
    from localspec.cli.progress import Terminal
    from localspec.library import Library
    from localspec.library.verify import disk_usage

    library = Library()
    resolved = library.find(model) or next((known for known in library.known() if known.name == model), None)
    if resolved is None:
        raise missing_error(library, model)
    own, elsewhere = disk_usage(resolved, library.home)
    if not (yes or as_json):
        confirm(resolved, library, format_bytes(own))
    with Terminal() as progress:
        freed = library.remove(resolved.name, progress)
    if as_json:
        console.print_json({"name": resolved.name, "freed": freed, "elsewhere": elsewhere})
        return
    place = resolved.manifest.folder or resolved.manifest.weights
    remaining = f"; {format_bytes(elsewhere)} stay in {place}" if elsewhere else ""
    console.print_text(f"Deleted {resolved.name}, {format_bytes(freed)} freed{remaining}")


def confirm(model: StoredModel, library: Library, size: str) -> None:
    """Ask before a model is deleted; raises BadValue without a terminal, Exit for a no."""
    if not sys.stdin.isatty():
        raise BadValue(
            f"Deleting `{model.name}` needs a confirmation, but stdin is no terminal", "Give `--yes`"
        )
    drafts = ", ".join(draft.name for draft in library.drafts_for(model))
    note = f"; it is the target of {drafts}" if drafts else ""
    if not console.confirm(f"Delete {model.name} ({size}){note}?"):
        raise typer.Exit(1)
