"""The most confident masks first, a fixed number a pass or as many as are confident enough."""

from __future__ import annotations

from typing import Annotated

from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.parts import BlockSampler
from localspec.core.blocks.quota import Quota, ranked
from localspec.plugins import Option


class LowConfidence(BlockSampler):
    """Writes the most confident tokens of each pass: one, `k`, or all above a threshold.

    The base of the others, and the default. One token a pass is the most accurate and the slowest. Nie et al.
    2025, "Large Language Diffusion Models" (static); SDAR and Fast-dLLM (Wu et al. 2025, dynamic).
    """

    def __init__(
        self,
        *,
        k: Annotated[int, Option("tokens a pass, at least", least=1, most=4096)] = 1,
        threshold: Annotated[float, Option("write all above it, 0 for none", least=0, most=1)] = 0.0,
        factor: Annotated[float, Option("Fast-dLLM's factor, 0 for none", least=0, most=100)] = 0.0,
    ) -> None:
        self._quota = Quota(k, threshold, factor).checked()

    def fill(self, canvas: Canvas) -> None:
        """Fill in the block."""
        while canvas.open:
            candidates = canvas.candidates()
            canvas.chosen_of(candidates, ranked(candidates.confidence)[: self._quota.of(candidates)])
