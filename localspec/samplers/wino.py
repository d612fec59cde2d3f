"""Many tokens a pass, of which later passes take doubtful ones back."""

from __future__ import annotations

from typing import Annotated, ClassVar

from localspec.core.blocks import revocable
from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.parts import BlockSampler
from localspec.plugins import Option


class Wino(BlockSampler):
    """Writes many tokens a pass and takes back those that their shadows do not confirm.

    "Wide-In, Narrow-Out" (arXiv 2507.18578). Each pass reads the block twice, so it takes
    fewer passes, each of which costs more.
    """

    copies: ClassVar[bool] = True

    def __init__(
        self,
        *,
        write: Annotated[float, Option("confidence above which a token is written", least=0, most=1)] = 0.6,
        keep: Annotated[float, Option("confidence below which it is taken back", least=0, most=1)] = 0.9,
    ) -> None:
        self._thresholds = revocable.Thresholds(write, keep)

    def fill(self, canvas: Canvas) -> None:
        """Fill in the block."""
        revocable.fill(canvas, self._thresholds)
