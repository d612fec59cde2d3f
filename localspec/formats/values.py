"""Numbers and texts of a model's files, checked as they are read: a file may hold anything under any key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from localspec.errors import BrokenModel, LocalspecError, UnsupportedModel, printable

# Far above those of real models: a damaged number must not take all memory, or an hour.
MAX_LAYERS = 1 << 10
MAX_WIDTH = 1 << 20
MAX_CONTEXT = 1 << 30
MAX_TOKENS = 1 << 22
LARGEST = 1e12  # of a number that is no count


class Source(Protocol):
    """A file with values by key, such as a GGUF file or a config.json."""

    @property
    def path(self) -> Path:
        """The file, or its folder."""

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key as the file has it."""


class Values:
    """The values of one JSON file."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values

    def value(self, key: str, default: Any = None) -> Any:
        """Return the value of a key as the file has it."""
        return self._values.get(key, default)


def whole(
    source: Source, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_WIDTH
) -> int:
    """Return a whole number from `least` to `most`; an absent or null key is `default`, without one an error.

    Raises BrokenModel with the file and the key, UnsupportedModel for a value for each layer.
    """
    found = _found(source, key, default)
    if type(found) is float and found.is_integer():
        found = int(found)
    if type(found) is not int or not least <= found <= most:
        raise wrong(source, key, found, f"a whole number from {least:,} to {most:,}")
    return found


def alike(source: Source, key: str, layers: int, default: int | None = None) -> int:
    """Return a whole number that a file may also list for each of its layers, if all of them are the same."""
    listed = source.value(key)
    if isinstance(listed, list) and len(listed) == layers and all(each == listed[0] for each in listed):
        return whole(Values(source.path, {key: listed[0]}), key)
    return whole(source, key, default)


def number(
    source: Source, key: str, default: float | None = None, *, least: float = 0.0, most: float = LARGEST
) -> float:
    """Return a finite number from `least` to `most`, by the same rules as `whole`."""
    found = _found(source, key, default)
    if type(found) not in (int, float) or not least <= found <= most:  # also false for NaN
        raise wrong(source, key, found, f"a number from {least:g} to {most:g}")
    return float(found)


def flag(source: Source, key: str, default: bool = False) -> bool:
    """Return whether a key is true or 1; an absent or null key is `default`."""
    found = _found(source, key, default)
    if type(found) is not bool and (type(found) is not int or found not in (0, 1)):
        raise wrong(source, key, found, "true or false")
    return bool(found)


def text(source: Source, key: str, default: str | None = None) -> str:
    """Return a text, by the same rules as `whole`."""
    found = _found(source, key, default)
    if type(found) is not str:
        raise wrong(source, key, found, "a text")
    return found


def wrong(source: Source, key: str, found: Any, expected: str) -> LocalspecError:
    """Return the error of a value that is not as `expected`, with the file and the key.

    A number out of range is damage, a value of another type is what another program wrote.
    """
    if isinstance(found, list) and found and type(found[0]) is int:
        return UnsupportedModel(f"`{key}` of `{source.path}` differs by layer, which is not supported")
    what = f"`{key}` of `{source.path}` is `{printable(shown(found))}`, expected {expected}"
    if type(found) in (int, float) and "number" in expected:
        return BrokenModel(what, "Download it again")
    return UnsupportedModel(what, "Correct the value, if you know what it should be")


def _found(source: Source, key: str, default: Any) -> Any:
    found = source.value(key)
    if found is None:
        found = default
    if found is None:
        raise BrokenModel(f"`{source.path}` has no `{key}`", "Download it again")
    return found


def shown(found: Any) -> str:
    """Return a value as a message can show it; a list or an object by its type, for it may be nested."""
    if isinstance(found, list | dict):
        return "[...]" if isinstance(found, list) else "{...}"
    if type(found) is int and found.bit_length() > 200:
        return "a number of too many digits"
    return str(found)
