"""Recipes: how a draft is built, as one TOML file each."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from localspec.errors import BadValue, UnknownName

HERE = Path(__file__)


class Needs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a build takes: bytes of memory and disk, minutes, and whether that was measured."""

    memory: int
    disk: int
    minutes: float
    measured: bool = False


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """A draft called `name` for `target` out of the model `source`, by `steps` like `prune:layers=22`.

    Where it is no `draft`, it is the target itself in another form.
    """

    about: str
    target: str
    source: str
    name: str
    steps: tuple[str, ...]
    needs: Needs
    draft: bool = True


def names() -> list[str]:
    """List the recipes that are shipped."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load(text: str) -> Recipe:
    """Return a shipped recipe by its name, or that of a file; raises UnknownName and BadValue."""
    shipped, path = _folder() / f"{text}.toml", Path(text).expanduser()
    if text in names():
        path = shipped
    elif not path.is_file():
        raise UnknownName(f"There is no recipe or file `{text}`", text, names())
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Recipe)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        shown = ", ".join(names())
        raise BadValue(f"`{path}` is no recipe: {error}", f"See those that are shipped: {shown}") from None


def _folder() -> Path:
    """The files lie in the package when it was installed, and in the repository's root in a checkout."""
    shipped = HERE.parent / "_recipes"
    return shipped if shipped.is_dir() else HERE.parents[1] / "recipes"
