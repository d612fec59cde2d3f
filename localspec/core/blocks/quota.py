"""How many tokens a pass over a block reveals: the rules of the published samplers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localspec.core.blocks.types import Candidates, Numbers, Places
from localspec.errors import one_of


class Quota(NamedTuple):
    """At least `k` tokens, and more of them by at most one rule; 0 switches a rule off.

    `threshold`: all whose confidence is above it (dynamic low-confidence remasking of SDAR; Wu et al. 2025,
    "Fast-dLLM"). `factor`: the largest n with (n + 1) (1 - c_n) < factor, c_n the n-th best confidence
    (Fast-dLLM). `gamma`: the most tokens, best first, whose entropies sum to at most gamma beside the largest
    of them (Ben-Hamu et al. 2025, "Accelerated Sampling from Masked Diffusion Models via Entropy Bounded
    Unmasking").
    """

    k: int = 1
    threshold: float = 0.0
    factor: float = 0.0
    gamma: float = 0.0

    def checked(self) -> Quota:
        """Return the quota; raises BadValue for two rules at once."""
        one_of(threshold=self.threshold, factor=self.factor, gamma=self.gamma)
        return self

    def of(self, candidates: Candidates) -> int:
        """Return how many of the candidates to reveal, at least one."""
        confidence, ranks = candidates.confidence, ranked(candidates.confidence)
        more = 0
        if self.threshold:
            more = int((confidence > self.threshold).sum())
        elif self.factor:
            more = by_factor(confidence[ranks], self.factor)
        elif self.gamma:
            more = by_entropy(candidates.entropy[ranks], self.gamma)
        return min(max(more, self.k, 1), len(confidence))


def ranked(scores: Numbers) -> Places:
    """Return the indices of scores, best first; of equal ones the left one comes first."""
    return np.argsort(-scores, kind="stable")


def by_factor(confidence: Numbers, factor: float) -> int:
    """Return the largest n with (n + 1) (1 - c_n) < factor, of confidences that descend; 0 without one."""
    counts = np.arange(1, len(confidence) + 1)
    fits = np.flatnonzero((counts + 1) * (1 - confidence) < factor)
    return int(fits[-1]) + 1 if len(fits) else 0


def by_entropy(entropies: Numbers, gamma: float) -> int:
    """Return the most n of the first entropies whose sum without the largest is at most gamma."""
    spread = np.cumsum(entropies) - np.maximum.accumulate(entropies)
    fits = np.flatnonzero(spread <= gamma)
    return int(fits[-1]) + 1 if len(fits) else 0
