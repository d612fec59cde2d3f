"""`localspec list`: the models on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import console, options
from localspec.cli.models import search
from localspec.cli.sizes import format_bytes

if TYPE_CHECKING:
    from localspec.library import Library, StoredModel

HELP = """List the models of the library, with the disk space that they and their caches take.

A model whose files are elsewhere, such as in the Hugging Face cache or where you imported it from, takes no
space in the library. `localspec search` shows models to download, `localspec show NAME` shows details."""
EPILOG = """Examples:

  localspec list --json

  localspec list --available"""


def listing(
    available: Annotated[
        bool, typer.Option("--available", help="List the catalogue instead, as `localspec search` does.")
    ] = False,
    as_json: options.AsJsonList = False,
) -> None:
    """Print one line for each model, and on stderr those that cannot be used."""
    if available:
        search.search(None, as_json)
        return
    print_library(as_json)


def print_library(as_json: bool) -> None:
    """Print the models of the library."""
    from localspec.library import Library
    from localspec.library.importing.completeness import load_if_complete

    library = Library()
    for title, count in library.made_bytes(("downloads", "building")).items():
        console.say(f"{format_bytes(count)} of {title}: localspec clean")
    rows = []
    known = {model.name: model for model in library.known()}
    for name, model in known.items():
        if model.manifest.newer:
            console.say(f"{name} was written by a newer localspec: localspec show {name}")
        elif load_if_complete(library.models / name, model.manifest) is None:
            console.say(f"{name} is incomplete: localspec verify {name}")
        else:
            rows.append(model_row(model, library))
    if as_json:
        console.print_json(rows)
        return
    if not known:
        console.print_text(
            "No models yet. Find one: localspec search; download it: localspec pull smollm2-135m"
        )
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        own, elsewhere = row["bytes"], row["elsewhere"]
        size = f"{format_bytes(own or elsewhere):>9}" + ("" if own else " elsewhere")
        target = f"draft of {row['target']}" if row["target"] else ""
        caches = f"{format_bytes(row['caches'])} of caches" if row["caches"] else ""
        kind = row["kind"] if row["kind"] != "text" else ""
        details = filter(None, [kind, row["precision"], " ".join(row["formats"]), target, caches])
        console.print_text(f"{row['name']:<{width}} {size}  {'  '.join(details)}")


def model_row(model: StoredModel, library: Library) -> dict[str, Any]:
    """Return a model as the list shows it; sizes are in bytes."""
    from localspec.library import compiled_folder, storage
    from localspec.library.model import FORMATS
    from localspec.library.verify import disk_usage

    own, elsewhere = disk_usage(model, library.home)
    return {
        "name": model.name,
        "bytes": own,
        "elsewhere": elsewhere,
        "caches": storage.reclaimable_bytes(compiled_folder(model.folder)),
        "precision": model.manifest.precision,
        "architecture": model.manifest.architecture,
        "kind": model.kind,
        "formats": [name for name in FORMATS if model.files_in(name)],
        "target": model.manifest.target or None,
        "draft": model.draft,
        "source": model.manifest.source,
        "created": model.manifest.created,
    }
