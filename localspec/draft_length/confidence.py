"""Guesses as long as the drafter is sure of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Guess, LazyGuess
from localspec.plugins import Option


class Confidence(DraftLengthPolicy):
    """Guesses on until the drafter gives a guess less than a least probability.

    Dynamic speculation draft-length policy (Mamou et al. 2024); the doubtful guess itself is still checked.
    """

    def __init__(
        self,
        *,
        least: Annotated[float, Option("least probability to go on", least=0, most=1)] = 0.4,
        most: Annotated[int, Option("most guesses a round", least=0, most=256)] = 20,
    ) -> None:
        self._least = least
        self._most = most

    def wants_more(self, draft: Sequence[Guess], step: Guess | LazyGuess) -> bool:
        """Tell whether the last guess was a sure one."""
        return len(draft) < self._most and (not draft or draft[-1].confidence >= self._least)
