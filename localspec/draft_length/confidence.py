"""Drafts until the drafter is no longer confident."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Candidate, Guess, LazyGuess, path_of
from localspec.plugins import Option


class Confidence(DraftLengthPolicy):
    """Drafts until the drafter gives a guess less than a minimum probability.

    Dynamic speculation lookahead (Mamou et al. 2024); the unlikely guess itself is still verified.
    """

    def __init__(
        self,
        *,
        min_confidence: Annotated[
            float, Option("probability below which the draft ends", least=0, most=1)
        ] = 0.4,
        max_tokens: Annotated[int, Option("maximum guesses per step", least=0, most=256)] = 20,
    ) -> None:
        self._min = min_confidence
        self._max = max_tokens

    def wants_more(self, draft: Sequence[Guess], candidate: Candidate) -> bool:
        """Return whether the last guess, or that of a branch itself, was confident enough."""
        if isinstance(candidate, LazyGuess) and candidate.superseded:
            return False
        if isinstance(candidate, Guess) and candidate.after is not None:
            judged: Sequence[Guess] = [candidate]
        else:
            judged = path_of(draft)[-1:]
        return len(draft) < self._max and all(guess.confidence >= self._min for guess in judged)
