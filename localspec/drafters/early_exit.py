"""Guesses of the target's own first layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from localspec.core.contracts import Drafter, EarlyExit
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, LazyGuess, Tokens
from localspec.errors import BadValue, ContextFull
from localspec.plugins import Option


class EarlyExitDraft(Drafter):
    """Guesses with the target's first layers and its head; the verification continues from there.

    The self-speculation of LayerSkip (Elhoushi et al. 2024): one set of weights and one KV cache for both,
    and no layer reads a token twice. Models that were not trained for it guess badly (docs/drafters.md).
    """

    def __init__(
        self, target: Cursor, *, layer: Annotated[int, Option("layers that guess", least=1)]
    ) -> None:
        session = target.session
        if not isinstance(session, EarlyExit):
            raise BadValue(
                "`early_exit` needs an engine with an `exit`",
                f"Choose one for the target, such as `--engine openvino:exit={layer}`",
            )
        self._target = target
        self._session = session

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the engine's `exit`: the number of layers that guess."""
        return {"exit": options["layer"]}

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[LazyGuess]:
        """Yield lazy guesses, one pass through the first layers each, as far as the context reaches."""
        text = list(tokens)

        def draw() -> Guess | None:
            if len(text) == len(tokens):
                self._target.read(text[:-1], rows=0)
            try:
                row = self._session.early(text[len(self._target.tokens) :], 1)[0]
            except ContextFull:
                return None
            guess = sampler.guess(row, text)
            text.append(guess.token)
            return guess

        while True:
            length = len(text)
            yield LazyGuess(draw)
            if len(text) == length:
                return
