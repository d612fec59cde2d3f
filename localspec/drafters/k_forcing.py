"""Guesses of K-Forcing: hints in the target's own passes tell what may follow the next token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

from localspec.core.contracts import Drafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Candidate, Guess, LazyGuess, Logits, Row, Tokens, Verdict
from localspec.drafting.extras import hinted
from localspec.plugins import Option


class KForcingDraft(Drafter):
    """Guesses what hints told in the last target pass: the tokens after the one that it chose.

    A pass reads k - 1 hints after each guess, so that those after the accepted ones are there whatever stands
    (K-Forcing, 2606.10820). Hints know the number that draws a token where the sampler has `quantiles`
    (`--verifier exact:noise=position`); otherwise they stand for the likeliest tokens, and tell nothing after
    another one. A guess costs no pass; a pass with hints costs what its rows do.
    """

    kinds: ClassVar[tuple[str, ...]] = ("k-forcing",)

    def __init__(
        self,
        target: Cursor,
        *,
        name: Annotated[str, Option("the hints: a name in the library, or a folder")],
        k: Annotated[int, Option("tokens a pass, 0 for as many as were trained", least=0, most=16)] = 0,
    ) -> None:
        self._session, count = hinted(target, "k_forcing", name, k)
        self._most = count - 1
        self._told: tuple[list[int], list[Row]] | None = (
            None  # a text, and what hints say of the tokens after it
        )
        self._asked = False  # the next pass reads hints
        self._shared = False  # hints know what draws the tokens

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the engine's `hints`."""
        return {"hints": options["name"]}

    def begin(self, prompt: Tokens) -> None:
        """Start an answer."""
        self._told, self._asked = None, False

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Candidate]:
        """Yield a lazy guess, which lets the next pass read hints, and then those that were told with it."""
        text, rows = list(tokens), self._after(tokens)
        self._asked = False

        def draw() -> Guess | None:
            self._ask(sampler)
            if not rows:
                return None
            guess = sampler.guess(rows.pop(0), text)
            text.append(guess.token)
            return guess

        yield LazyGuess(draw)
        while rows and len(text) > len(tokens):
            if (guess := draw()) is not None:
                yield guess

    def observe(self, tokens: Tokens, logits: Logits, verdict: Verdict) -> None:
        """Keep what hints told after the token that the target chose."""
        told, self._told = self._session.hinted(), None
        likeliest = self._shared or int(logits[verdict.accepted].argmax()) == verdict.token
        if self._asked and len(told) == len(logits) and likeliest:
            end = len(tokens) - len(logits) + 1 + verdict.accepted
            self._told = [*tokens[:end], verdict.token], [row.copy() for row in told[verdict.accepted]]

    def _ask(self, sampler: Sampler) -> None:
        """Let the next pass read hints with the sampler's noise, as far as they can know it."""
        self._asked = True
        self._shared = sampler.quantiles and sampler.coupled and not sampler.sampling.greedy
        if self._shared:
            self._session.hint(sampler.quantile, sampler.sampling.temperature, self._most)
        else:
            self._session.hint(lambda position: 0.5, 0.0, self._most)

    def _after(self, tokens: Sequence[int]) -> list[Row]:
        """Return what hints told of the tokens after a text, which a grammar may have carried on."""
        if self._told is None:
            return []
        known, rows = self._told
        return list(rows[len(tokens) - len(known) :]) if list(tokens[: len(known)]) == known else []
