"""`localspec list`: the models on this machine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from localspec.library import Library, Model

HELP = """List the models of the library, with what they take on this disk.

A model whose files lie elsewhere, such as in the cache of Hugging Face's tools or where you imported it from,
takes nothing here. `localspec pull NAME` fetches one, `localspec show NAME` tells all about it."""
EPILOG = "Example: localspec list --json"


def listing(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Print one line a model, and on stderr what is not listed."""
    from localspec.cli import console
    from localspec.library import Library
    from localspec.library.importing.completeness import load_if_complete

    library, found = Library(), []
    known = {model.name: model for model in library.known()}
    for name, model in known.items():
        if model.manifest.newer:
            console.say(f"{name} was written by a newer localspec: localspec show {name}")
        elif load_if_complete(library.models / name, model.manifest) is None:
            console.say(f"{name} is not whole: localspec verify {name}")
        else:
            found.append(described(model, library))
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    if not known:
        print("No models yet. Fetch one: localspec pull smollm2-135m")
    widest = max((len(one["name"]) for one in found), default=0)
    for one in found:
        here, there = one["bytes"], one["elsewhere"]
        place = f"{in_words(here or there):>9}" + ("" if here else " elsewhere")
        target = f"draft of {one['target']}" if one["target"] else ""
        about = filter(None, [one["precision"], " ".join(one["forms"]), target])
        print(f"{one['name']:<{widest}} {place}  {'  '.join(about)}")


def described(model: Model, library: Library) -> dict[str, Any]:
    """Return what the list tells of a model; sizes are bytes."""
    from localspec.library.model import FORMATS
    from localspec.library.verify import disk_usage

    own, elsewhere = disk_usage(model, library.home)
    return {
        "name": model.name,
        "bytes": own,
        "elsewhere": elsewhere,
        "precision": model.manifest.precision,
        "architecture": model.manifest.architecture,
        "forms": [form for form in FORMATS if model.files_in(form)],
        "target": model.manifest.target or None,
        "draft": model.draft,
        "source": model.manifest.source,
        "created": model.manifest.created,
    }


def in_words(count: float) -> str:
    """Return bytes as people say them: `98.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
