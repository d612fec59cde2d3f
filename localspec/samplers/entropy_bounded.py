"""As many tokens a pass as share an entropy budget."""

from __future__ import annotations

from typing import Annotated

from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.parts import BlockSampler
from localspec.core.blocks.quota import Quota, ranked
from localspec.plugins import Option


class EntropyBounded(BlockSampler):
    """Writes as many confident tokens a pass as an entropy budget allows.

    A larger budget takes fewer passes and errs more often. Ben-Hamu et al. 2025, "Accelerated Sampling from
    Masked Diffusion Models via Entropy Bounded Unmasking".
    """

    def __init__(
        self,
        *,
        gamma: Annotated[float, Option("nats a pass beside the largest", least=0, most=100)] = 0.1,
    ) -> None:
        self._quota = Quota(gamma=gamma)

    def fill(self, canvas: Canvas) -> None:
        """Fill in the block."""
        while canvas.open:
            candidates = canvas.candidates()
            canvas.chosen_of(candidates, ranked(candidates.confidence)[: self._quota.of(candidates)])
