"""`localspec clean`: delete what localspec can make again."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from localspec.cli import console
from localspec.cli.sizes import format_bytes
from localspec.errors import BadValue

HELP = """Delete what localspec can make or download again, after showing it and asking.

These are parts of interrupted downloads and builds, compiled graphs, prompt caches, and measurements of
interrupted searches. Models, drafts, conversations, settings and tuned settings stay; `localspec rm` deletes
a model."""
EPILOG = "Example: localspec clean --yes"


def clean(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; implies --yes.")] = False,
) -> None:
    """Show each kind with its size, then delete all and print the size of what was freed."""
    from localspec.cli.progress import Terminal
    from localspec.library import Library

    library = Library()
    sizes = library.made_bytes()
    if not as_json:
        for title, size in sizes.items():
            console.print_text(f"{format_bytes(size):>9}  {title}")
    if not (yes or as_json or not sizes):
        if not sys.stdin.isatty():
            raise BadValue("Deleting needs a confirmation, but stdin is no terminal", "Give `--yes`")
        if not console.confirm(f"Delete this in {library.home}?"):
            raise typer.Exit(1)
    with Terminal() as progress:
        freed = library.remove_made(progress)
    if as_json:
        console.print_json({"freed": freed, "kinds": sizes})
    else:
        console.print_text(f"{format_bytes(freed)} freed" if sizes else "Nothing to delete")
