"""More guesses after a round in which all stood, fewer after one in which some did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Guess, LazyGuess, Step
from localspec.plugins import Option

MORE, FEWER = 2, 1


class Heuristic(DraftLengthPolicy):
    """Guesses two tokens more after a round in which all stood, else one less.

    The schedule of transformers' assisted generation ("heuristic"). It knows no costs and never stops.
    """

    def __init__(
        self,
        *,
        start: Annotated[int, Option("guesses of the first round", least=1, most=256)] = 5,
        most: Annotated[int, Option("most guesses a round", least=1, most=256)] = 20,
    ) -> None:
        self._most = most
        self._tokens = min(start, most)

    def wants_more(self, draft: Sequence[Guess], step: Guess | LazyGuess) -> bool:
        """Tell whether the draft is shorter than this round's number."""
        return len(draft) < self._tokens

    def learn(self, last: Step) -> None:
        """Choose the number of the next round."""
        if last.drafted:
            more = last.accepted == last.drafted
            self._tokens = min(self._tokens + MORE, self._most) if more else max(self._tokens - FEWER, 1)
