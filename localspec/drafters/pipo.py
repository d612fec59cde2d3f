"""Guesses of PIPO: the target itself, taught to read pairs of tokens, drafts up to two a pass."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

from localspec.core.contracts import Drafter, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, LazyGuess, Tokens, shared_prefix
from localspec.drafting.extras import paired
from localspec.plugins import Option

FIRST, SECOND = "first", "second"  # sources: a guess that costs a pass, and one that a small head makes


class PipoDraft(Drafter):
    """Guesses with the target's PIPO (2605.27255), which reads the text in pairs, in a KV cache of its own.

    Every second guess is that of its small head, whose own confidence the draft-length policy gets; the
    others cost a pass over a pair. Greedy if the answer is greedy, else sampled with the answer's settings.
    """

    kinds: ClassVar[tuple[str, ...]] = ("pipo",)

    def __init__(
        self,
        target: Cursor,
        draft_model: DraftModel,
        *,
        name: Annotated[str, Option("PIPO's weights: a name in the library, or a folder")],
    ) -> None:
        del target, name  # the engine was made with them
        self._engine = draft_model.engine
        self._session = paired(self._engine.session(), "pipo")
        self._cursor = Cursor(self._session)

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[LazyGuess]:
        """Yield its continuation as lazy guesses, up to its own context length."""
        text = list(tokens)

        def draw(source: str) -> Guess:
            guess = sampler.guess(self._cursor.read(text)[0], text)._replace(source=source)
            text.append(guess.token)
            sure = self._session.confidence()
            return guess if sure is None else guess._replace(confidence=sure)

        behind = max(len(text) - shared_prefix(self._cursor.tokens, text), 1)
        for length in range(len(text), self._engine.context + 1):
            source = SECOND if behind == 1 and length % 2 else FIRST
            yield LazyGuess(partial(draw, source), source, behind)
            if len(text) == length:
                return
            behind = 1
