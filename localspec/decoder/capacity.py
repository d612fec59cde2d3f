"""How the buffers of a text grow."""

from __future__ import annotations

FIRST_CAPACITY = 256  # tokens of a new text's buffers; doubled when full


def grown(room: int, needed: int, most: int) -> int:
    """Return the new capacity of buffers for `room` tokens when `needed` must fit."""
    return max(needed, min(max(2 * room, FIRST_CAPACITY), most))
