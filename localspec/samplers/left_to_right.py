"""Masks from left to right: the order of an autoregressive model."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.parts import BlockSampler
from localspec.plugins import Option


class LeftToRight(BlockSampler):
    """Writes the leftmost masks first: the one order in which drafts are checked exactly.

    A draft that reveals tokens in this order changes no text of it (`--draft diffusion`). It forgoes what
    other orders gain, and with `k` above 1 it is the least accurate.
    """

    def __init__(self, *, k: Annotated[int, Option("tokens a pass", least=1, most=4096)] = 1) -> None:
        self._k = k

    @property
    def sequential(self) -> bool:
        """Whether it reveals one token a pass."""
        return self._k == 1

    def fill(self, canvas: Canvas) -> None:
        """Fill in the block."""
        while canvas.open:
            candidates = canvas.candidates(self._k)
            canvas.chosen_of(candidates, np.arange(len(candidates.places)))
