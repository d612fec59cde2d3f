"""Another choice of tokens for any number a pass: those that do not lean on uncertain ones."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.parts import BlockSampler
from localspec.core.blocks.quota import Quota
from localspec.core.blocks.types import Candidates, Places
from localspec.plugins import Option


class Adas(BlockSampler):
    """Writes as many tokens a pass as its base would, but not those that attend to uncertain ones.

    The attention-discounted adaptive sampler (Sahin et al. 2026, arXiv 2606.10829). The rules for the number
    are those of the base samplers. With one token a pass it is its base. It was published for four and more:
    there it errs less, and it may err more where two are written.
    """

    def __init__(
        self,
        *,
        k: Annotated[int, Option("tokens a pass, at least", least=1, most=4096)] = 4,
        threshold: Annotated[float, Option("as many as are above it, 0 for none", least=0, most=1)] = 0.0,
        factor: Annotated[float, Option("Fast-dLLM's factor, 0 for none", least=0, most=100)] = 0.0,
        gamma: Annotated[float, Option("entropy budget, 0 for none", least=0, most=100)] = 0.0,
        alpha: Annotated[float, Option("weight of the discount", least=0, most=10_000)] = 40.0,
    ) -> None:
        self._quota = Quota(k, threshold, factor, gamma).checked()
        self._alpha = alpha

    def fill(self, canvas: Canvas) -> None:
        """Fill in the block."""
        while canvas.open:
            candidates = canvas.candidates(attention=True)
            canvas.chosen_of(candidates, picked(candidates, self._quota.of(candidates), self._alpha))


def picked(candidates: Candidates, count: int, alpha: float) -> Places:
    """Return the indices of `count` candidates, each the best by its discounted confidence.

    u_i = c_i - alpha sum_s A_is (1 - c_s) over the picked s, with the sums kept from pick to pick.
    """
    confidence, attention = candidates.confidence, candidates.attention
    assert attention is not None
    among = attention[np.ix_(candidates.places, candidates.places)].astype(np.float64)
    scores, found = confidence.copy(), list[int]()
    for _ in range(count):
        best = int(scores.argmax())
        found.append(best)
        scores -= alpha * among[:, best] * (1 - confidence[best])
        scores[found] = -np.inf
    return np.array(found, np.int64)
