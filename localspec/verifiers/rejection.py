"""Speculative sampling: guesses are accepted with probabilities that keep the target's distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from localspec.core.contracts import Verifier
from localspec.core.sampler import Sampler
from localspec.core.types import Distribution, Guess, Logits, Tokens, Verdict


class Rejection(Verifier):
    """Accepts by rejection sampling: the same distribution, with more accepted guesses than by agreement.

    Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1: with the
    target's p and the draft's q, a guess x ~ q stands with probability min(1, p(x) / q(x)); else the token is
    drawn from norm(max(0, p - q)). A point-mass guess has q(x) = 1.
    """

    coupled: ClassVar[bool] = False

    def verify(self, tokens: Tokens, draft: Sequence[Guess], rows: Logits, sampler: Sampler) -> Verdict:
        """Return the number of accepted guesses, and a token from the residual or, after all, from p."""
        before = list(tokens)
        for accepted, guess in enumerate(draft):
            p = sampler.distribution(rows[accepted], before)
            q = guess.probs or Distribution(np.array([guess.token]), np.ones(1))
            if sampler.uniform() * q.of(guess.token) >= p.of(guess.token):
                return Verdict(accepted, sampler.draw(residual(p, q)))
            before.append(guess.token)
        return Verdict(len(draft), sampler.draw(sampler.distribution(rows[len(draft)], before)))


def residual(p: Distribution, q: Distribution) -> Distribution:
    """Return norm(max(0, p - q)) over the tokens of p, the distribution after a rejected guess."""
    at = np.searchsorted(q.tokens, p.tokens).clip(max=len(q.tokens) - 1)
    drawn = np.where(q.tokens[at] == p.tokens, q.probs[at], 0.0)
    rest = np.maximum(p.probs - drawn, 0.0)
    total = rest.sum()
    # p equals q up to rounding: a rejection then has probability 0 up to rounding, and p is the limit
    return Distribution(p.tokens, rest / total) if total > 0 else p
