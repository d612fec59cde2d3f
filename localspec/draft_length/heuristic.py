"""More guesses after a step that accepted all of them, fewer after one that did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Candidate, Guess, LazyGuess, Step
from localspec.plugins import Option

MORE, FEWER = 2, 1


class Heuristic(DraftLengthPolicy):
    """Drafts two more tokens after a step that accepted the whole draft, else one less.

    The schedule of transformers' assisted generation ("heuristic"). It ignores costs and never stops
    drafting.
    """

    def __init__(
        self,
        *,
        start: Annotated[int, Option("guesses of the first step", least=1, most=256)] = 5,
        max_tokens: Annotated[int, Option("maximum guesses per step", least=1, most=256)] = 20,
    ) -> None:
        self._max = max_tokens
        self._tokens = min(start, max_tokens)

    def wants_more(self, draft: Sequence[Guess], candidate: Candidate) -> bool:
        """Return whether the draft is shorter than this step's number."""
        if isinstance(candidate, LazyGuess) and candidate.superseded:
            return False
        return len(draft) < self._tokens

    def learn(self, last: Step) -> None:
        """Choose the number for the next step."""
        if last.drafted:
            more = last.accepted == last.drafted
            self._tokens = min(self._tokens + MORE, self._max) if more else max(self._tokens - FEWER, 1)
