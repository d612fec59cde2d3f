"""No guesses: plain decoding."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.core.contracts import Drafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, Tokens


class NoDraft(Drafter):
    """Guesses nothing, which is plain decoding."""

    def __init__(self, target: Cursor) -> None:
        del target

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        """Yield nothing."""
        return iter(())
