"""Guesses of a smaller model with the same vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from localspec.core.contracts import Drafter, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, LazyGuess, Tokens, shared_prefix
from localspec.plugins import Option


class ModelDraft(Drafter):
    """Guesses with a draft model that has the target's vocabulary, in a KV cache of its own.

    Greedy if the answer is greedy, else sampled with the answer's settings, with probabilities for rejection
    sampling. The draft reads what it has missed before its first guess, so the draft-length policy may leave
    it idle for as long as it likes.
    """

    def __init__(
        self,
        target: Cursor,
        draft_model: DraftModel,
        *,
        name: Annotated[str, Option("the draft: an alias, a file or a folder")],
        device: Annotated[str, Option("its device, the target's when empty")] = "",
        threads: Annotated[int, Option("its threads, 0 for as many as the target", least=0, most=1024)] = 0,
        runs: Annotated[str, Option("the engine that runs it, the target's when empty")] = "",
    ) -> None:
        del target, name, device, threads, runs  # the engine was made from them
        self._engine = draft_model.engine
        self._vocab = draft_model.vocab
        self._cursor = Cursor(self._engine.session())

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[LazyGuess]:
        """Yield the draft's continuation as lazy guesses, one pass each, up to its own context length."""
        text = list(tokens)

        def draw() -> Guess:
            guess = sampler.guess(self._cursor.read(text)[0, : self._vocab], text)
            text.append(guess.token)
            return guess

        behind = max(len(text) - shared_prefix(self._cursor.tokens, text), 1)
        for length in range(len(text), self._engine.context + 1):
            yield LazyGuess(draw, behind=behind)
            if len(text) == length:
                return
            behind = 1
