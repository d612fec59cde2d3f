"""Validation of the saved state of the adaptive policy: the file may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = 3
LARGE = 1e9  # no number of a state is larger
SMALL = 1e-18  # nor any that must not be 0 smaller
ROUNDING = 1e-6  # faded sums of the same samples may differ by so much


def fit(values: Any) -> bool:
    """Tell whether `values` are a state of this version, as `Measured.state` gives it."""
    if not isinstance(values, Mapping) or values.get("version") != VERSION:
        return False
    passes, sources = values.get("passes", ()), values.get("sources")
    if not are_rows(passes, int, 1) or any(width < 1 for width, _ in passes):
        return False
    if not all(is_number(values.get(name), 0, LARGE) for name in ("usual", "waited")):
        return False
    return isinstance(sources, Mapping) and all(_fit_source(known) for known in sources.values())


def _fit_source(values: Any) -> bool:
    """Tell whether `values` are what is known of one source, as `Pace.state` gives it."""
    if not isinstance(values, Mapping):
        return False
    stood, seen = values.get("stood", ()), values.get("seen", ())
    if not are_numbers(stood, 0, LARGE) or not are_numbers(seen, 0, LARGE) or len(stood) != len(seen):
        return False
    if any(good > judged + ROUNDING for good, judged in zip(stood, seen, strict=True)):
        return False
    if not is_number(values.get("prior"), 0, 1):
        return False
    guess = values.get("guess", "")
    if guess is not None and not (is_number(guess, 0, LARGE) and stood):
        return False
    reading = values.get("reading", "")
    if reading is not None and not is_number(reading, 0, LARGE):
        return False
    named = all(are_rows(values.get(name), str, 2) for name in ("classes", "after"))
    return named and are_rows(values.get("first"), str, 1)


def is_number(value: Any, low: float, high: float) -> bool:
    """Tell whether `value` is a number within bounds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def are_numbers(values: Any, low: float, high: float) -> bool:
    """Tell whether `values` is a list of numbers within bounds."""
    return isinstance(values, list) and all(is_number(value, low, high) for value in values)


def are_rows(values: Any, kind: type, count: int) -> bool:
    """Tell whether `values` is a list of lists: one value of `kind`, then `count` numbers above 0."""
    return isinstance(values, list) and all(
        isinstance(row, list)
        and len(row) == count + 1
        and isinstance(row[0], kind)
        and are_numbers(row[1:], SMALL, LARGE)
        for row in values
    )
