"""Tokens that a draft or a middle tier emits stand unseen by the target: faster, and another text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from localspec.core.contracts import Drafter, LossyVerifier, TieredDrafter
from localspec.core.sampler import Sampler
from localspec.core.stats import Emitted
from localspec.core.types import Guess, Logits, Tokens, Verdict
from localspec.drafting.tiers import ACCEPT, ESCALATE, FULL, judge
from localspec.plugins import Option


class Via(LossyVerifier):
    """Accepts unseen what the tiers below the target emit (VIA-SD): the text is not the target's.

    Xian et al. 2026, arXiv 2606.12243. The tokens of a step are those that the drafter `cascade` kept or
    replaced, then the target's own. With the draft's p, the middle tier's q' and the target's q, a token has
    the distribution pi = (1 - d2) [(1 - d1) p + d1 q'] + d2 q (equation 14), which is not q: d2 is the
    probability that a guess goes to the target, d1 that it goes to the middle tier if not, and p is the
    distribution of kept guesses. Guesses that no tier checked are verified as by `exact`. The thresholds
    become those of the drafter.
    """

    coupled: ClassVar[bool] = False
    drafter: ClassVar[str] = "cascade"

    def __init__(
        self,
        *,
        accept: Annotated[float, Option("r from which a guess stands", least=0, most=1)] = ACCEPT,
        escalate: Annotated[float, Option("r below which the target decides", least=0, most=1)] = ESCALATE,
    ) -> None:
        del accept, escalate  # the drafter has them
        self._tiered: TieredDrafter | None = None
        self._emitted: list[Emitted] = []

    def follow(self, drafter: Drafter) -> None:
        """Accept what the tiers of `drafter` emit; without tiers, verify exactly."""
        self._tiered = drafter if isinstance(drafter, TieredDrafter) else None

    @property
    def emitted(self) -> tuple[Emitted, ...]:
        """The tier behind each token of the last verdict."""
        return tuple(self._emitted)

    def verify(self, tokens: Tokens, draft: Sequence[Guess], rows: Logits, sampler: Sampler) -> Verdict:
        """Return the guesses up to the first that no tier stands for and the target would not choose."""
        before, self._emitted = list(tokens), []
        for accepted, guess in enumerate(draft):
            row = rows[accepted]
            if (tier := self._tier(before, guess.token)) and sampler.allows(guess.token, before):
                share = judge(row, before, guess.token, sampler).share
                self._emitted.append(Emitted(tier, guess.confidence - share))
            else:
                self._emitted.append(Emitted(FULL))
                if (token := sampler.choose(row, before)) != guess.token:
                    return Verdict(accepted, token)
            before.append(guess.token)
        self._emitted.append(Emitted(FULL))
        return Verdict(len(draft), sampler.choose(rows[len(draft)], before))

    def _tier(self, before: Tokens, token: int) -> str:
        return self._tiered.tier(len(before), token) if self._tiered else ""
