"""Guesses of a smaller model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from localspec.core.contracts import Drafter, Engine
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, LazyGuess, Tokens, shared_prefix
from localspec.plugins import Option


class ModelDraft(Drafter):
    """Guesses with a draft model that writes the target's tokens, in a cache of its own.

    Greedy when the answer is greedy, else drawn with the answer's settings, its probabilities kept for
    rejection sampling. The draft reads what it missed before its first guess, so it may be left alone for
    as long as the draft-length policy likes.
    """

    def __init__(
        self,
        target: Cursor,
        engine: Engine,
        vocab: int | None = None,
        *,
        name: Annotated[str, Option("the draft: an alias, a file or a folder")],
        device: Annotated[str, Option("its device, the target's when empty")] = "",
        threads: Annotated[int, Option("its threads, 0 for as many as the target", least=0, most=1024)] = 0,
        runs: Annotated[str, Option("the engine that runs it, the target's when empty")] = "",
    ) -> None:
        del target, name, device, threads, runs  # `runtime` has made the engine from them
        self._engine = engine
        self._vocab = vocab  # of the target: rows may be padded to different widths
        self._cursor = Cursor(engine.session())

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[LazyGuess]:
        """Offer the draft's continuation, one pass a guess, as far as its own context goes."""
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
