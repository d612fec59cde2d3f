"""The hidden states of a text, kept as it grows."""

from __future__ import annotations

import numpy as np

from localspec.core.contracts import Rows

FIRST_ROOM = 256  # tokens; it doubles when they are full


class States:
    """Vectors of the tokens of one text, in a buffer that grows by doubling; a rewind is a number."""

    def __init__(self) -> None:
        self._kept: Rows = np.empty((0, 0), np.float32)

    def put(self, at: int, new: Rows) -> None:
        """Keep `new` [tokens, width] from position `at` on, in place of what was there."""
        end = at + len(new)
        if end > len(self._kept):
            grown = np.empty((max(end, 2 * len(self._kept), FIRST_ROOM), new.shape[1]), np.float32)
            if at:
                grown[:at] = self._kept[:at]
            self._kept = grown
        self._kept[at:end] = new

    def first(self, length: int) -> Rows:
        """Return a view [length, width] of those of the first `length` tokens."""
        return self._kept[:length]
