"""Recipes: TOML files that describe how to build a draft."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from localspec.disk import given
from localspec.errors import BadValue, UnknownName, printable

HERE = Path(__file__)


class Needs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory and disk in bytes and the minutes that a build takes, and whether they were measured."""

    memory: int
    disk: int
    minutes: float
    measured: bool = False


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """Builds a draft `name` for `target` from the model `source`, by `steps` like `prune:layers=22`.

    If it is no `draft`, the result replaces the target.
    """

    about: str
    target: str
    source: str
    name: str
    steps: tuple[str, ...]
    needs: Needs
    draft: bool = True


def names() -> list[str]:
    """List the shipped recipes."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load(text: str) -> Recipe:
    """Return a shipped recipe by its name, or the recipe in a file; raises UnknownName and BadValue."""
    path = _folder() / f"{text}.toml" if text in names() else given.path_of(text)
    if not path.is_file():
        raise UnknownName(f"Unknown recipe or file `{text}`", text, names())
    try:
        return msgspec.convert(tomllib.loads(given.read_text(path)), Recipe)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise BadValue(
            f"`{path}` is not a recipe: {printable(str(error), 200)}",
            f"See the shipped ones: {', '.join(names())}",
        ) from None


def _folder() -> Path:
    """Return the folder of the shipped recipes: in the installed package, else the repository's `recipes`."""
    shipped = HERE.parents[1] / "_recipes"
    return shipped if shipped.is_dir() else HERE.parents[2] / "recipes"
