"""`localspec search`: the models of the catalogue, and whether they fit this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import console, options
from localspec.cli.sizes import format_bytes, format_short
from localspec.errors import UnknownModel, nearest

if TYPE_CHECKING:
    from localspec.library import CatalogueEntry

HELP = """Show the models of the catalogue, the best match for WORDS first.

A model matches if each word is part of its name, an alias, its title or its use. The sizes are approximate
and those of the default build: the download, and the memory that it needs to run. A model fits if that much
memory is free now."""
EPILOG = """Examples:

  localspec search qwen coder

  localspec search reasoning --json"""
TITLES = ("name", "use", "disk", "memory", "fits", "draft")


def search(
    words: Annotated[
        list[str] | None, typer.Argument(help="Words to look for.", show_default="all models")
    ] = None,
    as_json: options.AsJsonList = False,
) -> None:
    """Print one line for each model that matches; raises UnknownModel if none does."""
    from localspec.devices import free_memory
    from localspec.library import catalogue

    free = free_memory()
    sought = [part for word in words or () for part in word.lower().split()]
    rows = [model_row(entry, free) for entry in matches(catalogue.entries(), sought)]
    if as_json:
        console.print_json(rows)
        return
    if not rows:
        text = " ".join(sought)
        raise UnknownModel(f"No model matches `{text}`", nearest(text, catalogue.names(), catalogue.SHOWN_BY))
    print_table(rows)
    console.say(f"{format_bytes(free)} of memory free. Download a model: localspec pull NAME", console.DIM)


def matches(entries: tuple[CatalogueEntry, ...], words: list[str]) -> list[CatalogueEntry]:
    """Return the models that match every word, the best first, otherwise in their order."""
    ranked = {entry.name: [rank(entry, word) for word in words] for entry in entries}
    found = [entry for entry in entries if None not in ranked[entry.name]]
    return sorted(found, key=lambda entry: sum(filter(None, ranked[entry.name])))


def rank(entry: CatalogueEntry, word: str) -> int | None:
    """Return how well a word in lower case matches a model, 0 best; None if it does not."""
    names = [entry.name, *entry.aliases]
    parts = [part for name in names for part in name.replace(":", "-").split("-")]
    tests = (
        word in names,
        any(name.startswith(word) for name in names),
        word in parts or word in entry.use.split(", "),
        any(word in name for name in names),
        word in entry.title.lower() or word in entry.use,
    )
    return next((number for number, matching in enumerate(tests) if matching), None)


def model_row(entry: CatalogueEntry, free: int) -> dict[str, Any]:
    """Return a model as the table shows it, with `free` bytes of memory; sizes are in bytes."""

    precision = entry.precision_from(entry.sources[0])
    memory = entry.memory(precision)
    return {
        "name": entry.name,
        "aliases": list(entry.aliases),
        "title": entry.title,
        "use": entry.use.split(", "),
        "parameters": entry.parameters,
        "context": entry.context,
        "licence": entry.licence,
        "precision": precision,
        "disk": entry.download_bytes(),
        "memory": memory,
        "fits": memory <= free,
        "draft": entry.draft,
        "kind": entry.kind,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the models under the titles of the columns; only the last column has no fixed width."""
    cells = [TITLES, *map(row_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(TITLES) - 1)]
    for line in cells:
        name, use, *numbers = [
            f"{cell:>{width}}" if column in (2, 3) else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(line[:-1], widths, strict=True))
        ]
        console.print_text("  ".join([name, use, *numbers, line[-1]]).rstrip())


def row_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the texts of a model's columns."""
    fits, draft = ("yes" if row["fits"] else "no"), row["draft"] or ""
    sizes = (format_short(row["disk"]), format_short(row["memory"]))
    return (row["name"], row["use"][0], *sizes, fits, draft)
