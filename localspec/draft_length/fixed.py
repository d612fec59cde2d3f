"""The same number of guesses in each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Candidate, Guess, LazyGuess
from localspec.plugins import Option


class Fixed(DraftLengthPolicy):
    """Drafts the same number of tokens in each step."""

    def __init__(self, *, tokens: Annotated[int, Option("guesses per step", least=0, most=256)] = 4) -> None:
        self._tokens = tokens

    def wants_more(self, draft: Sequence[Guess], candidate: Candidate) -> bool:
        """Return whether the draft is shorter than the fixed number."""
        if isinstance(candidate, LazyGuess) and candidate.superseded:
            return False
        return len(draft) < self._tokens
