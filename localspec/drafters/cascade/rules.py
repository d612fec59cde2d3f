"""The rules by which the middle tier keeps a guess, replaces it, or leaves it to the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from localspec.core.sampler import Sampler
from localspec.core.types import Distribution, Guess, Logits, Row, Tokens
from localspec.drafting.tiers import DRAFT, MIDDLE, check_thresholds, judge

LEAST = 1e-6  # confidence of a kept guess that the middle tier would not have made


class Checked(NamedTuple):
    """A guess, and the tier that stands for it; empty where only the target may decide."""

    guess: Guess
    tier: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The thresholds of VIA-SD (Xian et al. 2026, arXiv 2606.12243) for r = q'(v) / max q'.

    From `accept` on a guess v is kept, from `escalate` on the middle tier's own token replaces it. Below, the
    draft ends there; its last guess is the middle tier's own token, which only the target may accept. So the
    pass has always made a guess, and its cost is known to the draft-length policy.
    """

    accept: float
    escalate: float

    def __post_init__(self) -> None:
        check_thresholds(self.accept, self.escalate)

    def check(self, guesses: Sequence[Guess], rows: Logits, text: Tokens, sampler: Sampler) -> list[Checked]:
        """Return what becomes of `guesses` after `text`, by the middle tier's logits `rows` [guesses, vocab].

        Whatever follows a replaced guess, or one that is left to the target, is dropped.
        """
        before, checked = list(text), []
        for guess, row in zip(guesses, rows, strict=True):
            found = judge(row, before, guess.token, sampler)
            if kept := found.relative >= self.accept:
                own = Guess(guess.token, guess.probs, max(found.share, LEAST), MIDDLE)
            else:
                own = sampler.guess(row, before)._replace(source=MIDDLE)
                if own.confidence == 0:  # a grammar allows none of the middle tier's tokens
                    break
            if guess.probs is not None:
                own = own._replace(probs=self._emitted(guess.probs, row, before, sampler))
            tier = DRAFT if kept else MIDDLE if found.relative >= self.escalate else ""
            checked.append(Checked(own, tier))
            if not kept:
                break
            before.append(guess.token)
        return checked

    def _emitted(self, draft: Distribution, row: Row, before: Tokens, sampler: Sampler) -> Distribution:
        """Return the distribution of what is emitted for a guess that is drawn from `draft`.

        A kept guess has its own probability, and the others pass theirs on to the middle tier's token; so
        rejection sampling keeps the target's distribution.
        """
        middle = sampler.distribution(row, before)
        at = np.searchsorted(middle.tokens, draft.tokens).clip(max=len(middle.tokens) - 1)
        own = np.where(middle.tokens[at] == draft.tokens, middle.probs[at], 0.0)
        kept = np.where(own / middle.probs.max() >= self.accept, draft.probs, 0.0)
        tokens = np.union1d(draft.tokens, middle.tokens)
        probs = np.zeros(len(tokens))
        probs[np.searchsorted(tokens, draft.tokens)] += kept
        probs[np.searchsorted(tokens, middle.tokens)] += max(1.0 - kept.sum(), 0.0) * middle.probs
        return Distribution(tokens, probs / probs.sum())
