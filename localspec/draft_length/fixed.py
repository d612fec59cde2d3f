"""The same number of guesses each round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Guess, LazyGuess
from localspec.plugins import Option


class Fixed(DraftLengthPolicy):
    """Guesses the same number of tokens each round."""

    def __init__(self, *, tokens: Annotated[int, Option("guesses a round", least=0, most=256)] = 4) -> None:
        self._tokens = tokens

    def wants_more(self, draft: Sequence[Guess], step: Guess | LazyGuess) -> bool:
        """Tell whether the draft is shorter than the fixed number."""
        return len(draft) < self._tokens
