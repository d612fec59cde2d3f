"""The models localspec knows by name: the TOML files of the `models` folder."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import UnknownModel, suggestion
from localspec.library.sources import Source

HERE = Path(__file__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalogue."""

    name: str
    title: str
    licence: str
    parameters: str  # as people say it: 135M, 8B
    context: int  # tokens
    sources: tuple[Source, ...]  # tried in this order
    aliases: tuple[str, ...] = ()
    digest: str = ""  # sha256 of the GGUF file; empty where it is not known
    draft: str | None = None  # the catalogue name of a small model that guesses for it


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return all models of the catalogue, families together and small ones first."""
    files = sorted(_folder().glob("*.toml"))
    return tuple(_entry(table) for file in files for table in _tables(file))


def find(name: str) -> Entry:
    """Return the entry of that name or alias; raise UnknownModel, naming the nearest."""
    found = lookup(name)
    if found is None:
        raise UnknownModel(f"There is no model called `{name}`", suggestion(name, names()))
    return found


def lookup(name: str) -> Entry | None:
    """Return the entry of that name or alias, if there is one."""
    wanted = name.lower()
    return next((entry for entry in entries() if wanted in (entry.name, *entry.aliases)), None)


def by_digest(digest: str) -> Entry | None:
    """Return the entry whose GGUF file has this sha256."""
    return next((entry for entry in entries() if entry.digest == digest), None)


def names() -> list[str]:
    """List every name, without aliases."""
    return [entry.name for entry in entries()]


def _folder() -> Path:
    """The files lie in the package when it was installed, and in the repository's root in a checkout."""
    shipped = HERE.parents[1] / "_models"
    return shipped if shipped.is_dir() else HERE.parents[2] / "models"


def _tables(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(file.read_text("utf-8"))["model"]
    return found


def _entry(table: dict[str, Any]) -> Entry:
    sources = tuple(Source.parse(text) for text in table.pop("sources"))
    return Entry(sources=sources, aliases=tuple(table.pop("aliases", ())), **table)
