"""Checks of the saved state of the adaptive policy: the file may hold anything."""

from __future__ import annotations

from typing import Any

VERSION = 6
LARGE = 1e9  # no number of a state is larger


def rows(values: Any, *kinds: type) -> list[list[Any]]:
    """Return `values`, a list of rows with cells of these kinds, numbers in [0, LARGE]; raises ValueError."""
    if not isinstance(values, list):
        raise ValueError(values)
    for row in values:
        if not isinstance(row, list) or len(row) != len(kinds):
            raise ValueError(row)
        for cell, kind in zip(row, kinds, strict=True):
            right = isinstance(cell, int | float if kind is float else kind) and not isinstance(cell, bool)
            if not right or (kind is not str and not 0 <= cell <= LARGE):
                raise ValueError(cell)
    return values
