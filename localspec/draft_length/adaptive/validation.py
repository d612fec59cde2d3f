"""Validation of the saved state of the adaptive policy: the file may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = 4
LARGE = 1e9  # no number of a state is larger
SMALL = 1e-18  # no number that must not be 0 is smaller
ROUNDING = 1e-6  # faded sums of the same samples may differ by this much


def is_valid(values: Any) -> bool:
    """Return whether `values` are a state of this version, as `Adaptive.state` returns it."""
    if not isinstance(values, Mapping) or values.get("version") != VERSION:
        return False
    passes, sources = values.get("pass_seconds", ()), values.get("sources")
    if not are_rows(passes, int, 1) or any(width < 1 for width, _ in passes):
        return False
    if not all(is_number(values.get(name), 0, LARGE) for name in ("usual_length", "waited_seconds")):
        return False
    return isinstance(sources, Mapping) and all(_is_valid_source(known) for known in sources.values())


def _is_valid_source(values: Any) -> bool:
    """Return whether `values` are the state of one source, as `SourceStats.state` returns it."""
    if not isinstance(values, Mapping):
        return False
    accepted, seen = values.get("accepted", ()), values.get("seen", ())
    if not are_numbers(accepted, 0, LARGE) or not are_numbers(seen, 0, LARGE) or len(accepted) != len(seen):
        return False
    if any(good > verified + ROUNDING for good, verified in zip(accepted, seen, strict=True)):
        return False
    if not is_number(values.get("prior"), 0, 1):
        return False
    guess = values.get("guess_seconds", "")
    if guess is not None and not (is_number(guess, 0, LARGE) and accepted):
        return False
    prefill = values.get("prefill_seconds", "")
    if prefill is not None and not is_number(prefill, 0, LARGE):
        return False
    named = all(are_rows(values.get(name), str, 2) for name in ("classes", "next_classes"))
    return named and are_rows(values.get("first_classes"), str, 1)


def is_number(value: Any, low: float, high: float) -> bool:
    """Return whether `value` is a number in [low, high]."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def are_numbers(values: Any, low: float, high: float) -> bool:
    """Return whether `values` is a list of numbers in [low, high]."""
    return isinstance(values, list) and all(is_number(value, low, high) for value in values)


def are_rows(values: Any, kind: type, count: int) -> bool:
    """Return whether `values` is a list of lists: one value of `kind`, then `count` numbers above 0."""
    return isinstance(values, list) and all(
        isinstance(row, list)
        and len(row) == count + 1
        and isinstance(row[0], kind)
        and are_numbers(row[1:], SMALL, LARGE)
        for row in values
    )
