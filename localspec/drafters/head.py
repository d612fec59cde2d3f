"""Guesses of a head: one layer that reads the target's own hidden states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np

from localspec.core.contracts import Drafter, DraftModel, HeadSession, LayerStates
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, LazyGuess, Row, Tokens, shared_prefix
from localspec.errors import BadValue, ContextFull
from localspec.plugins import Option

GUESSED = 32  # tokens at most that others guessed; more are a text that the target has not read


class HeadDraft(Drafter):
    """Guesses with a head that reads the target's hidden states after some of its layers (EAGLE-3).

    Position i of its text is the token i + 1, read with the target's state of token i; after the last token
    that the target has read, the head's own states stand for the target's (Li et al. 2025, section 3.1). The
    target's true states replace them in the next step. Only the end of a long prompt is read: the target's
    states have seen the rest, and reading it would cost several passes of the target.
    """

    kinds: ClassVar[tuple[str, ...]] = ("head",)

    def __init__(
        self,
        target: Cursor,
        draft_model: DraftModel,
        *,
        name: Annotated[str, Option("the head: a name in the library, or a folder")],
        device: Annotated[str, Option("its device, the target's when empty")] = "",
        threads: Annotated[int, Option("its threads, 0 for as many as the target", least=0, most=1024)] = 0,
        window: Annotated[int, Option("tokens of a text that it reads at once, at most", least=1)] = 128,
    ) -> None:
        del name, device, threads  # the engine was made from them
        self._window = window
        states, head = target.session, draft_model.engine.session()
        if not isinstance(states, LayerStates) or not isinstance(head, HeadSession):
            raise BadValue(
                "`head` needs a target that exposes hidden states, and a head that reads them",
                "Name a head that was trained for the target: `localspec train-head`",
            )
        self._target, self._states, self._head = target, states, head
        self._context = draft_model.engine.context
        self._text: list[int] = []  # the text up to the last token that was read with the target's own states
        self._start = 0  # the token whose state is the first that was read
        self._guessed: list[int] = []  # the tokens after the text that were read with the head's own states

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[LazyGuess]:
        """Yield lazy guesses, one pass of the head each, as far as its context reaches."""
        text = list(tokens)

        def draw() -> Guess | None:
            try:
                row = self._first(text) if len(text) == len(tokens) else self._next(text[-1])
            except ContextFull:
                return None
            guess = sampler.guess(row, text, self._head.tokens)
            text.append(guess.token)
            return guess

        read = self._read(text) or shared_prefix(self._text, text)
        behind = min(max(len(text) - read, 1), self._window)
        for length in range(len(text), self._context + 1):
            if length < 2:  # no token lies before the only one
                return
            yield LazyGuess(draw, behind=behind)
            if len(text) == length:
                return
            behind = 1

    def _read(self, text: list[int]) -> int:
        """Return up to where `text` is read if it goes on after the last guess that was, 0 if it does not."""
        read = len(self._text) + len(self._guessed)
        goes_on = self._guessed and read < len(text) and text[:read] == [*self._text, *self._guessed]
        return read if goes_on and self._known(text) == len(self._text) - 1 else 0

    def _first(self, text: list[int]) -> Row:
        """Read what the head has missed of `text`; return the logits after its last token.

        The target has read all but the last token, and guesses that others made since, if there are any:
        these are read with the head's own states, a pass each.
        """
        row: Row = np.empty(0, np.float32)
        read = self._read(text)
        if not read:
            row, read = self._led(text), len(self._text)
        for token in text[read:]:
            row = self._next(token)
        return row

    def _led(self, text: list[int]) -> Row:
        """Read the tokens before which the target's states are known, the last one in any case.

        Of many, only the last ones are read, into an empty cache.
        """
        known = self._known(text)
        read = min(shared_prefix(self._text, text), known) - 1
        if read < self._start or known - read > self._window:
            read = self._start = max(known - self._window, 0)
        self._guessed = []
        self._text = text[: read + 1]
        self._head.rewind(read - self._start)
        self._head.lead(self._head.fuse(self._states.states()[read:known]))
        row: Row = self._head.forward(text[read + 1 : known + 1], 1)[0]
        self._text = text[: known + 1]
        return row

    def _known(self, text: list[int]) -> int:
        """Return of how many tokens of `text` the target's states are known, at least one."""
        known = min(shared_prefix(self._target.tokens, text), len(text) - 1)
        if known and len(text) - 1 - known <= GUESSED:
            return known
        self._target.read(text[:-1], rows=0)
        return len(text) - 1

    def _next(self, token: int) -> Row:
        """Read a guess with the head's own state before it; return the logits after it."""
        self._head.lead(self._head.own()[-1:].copy())
        row: Row = self._head.forward([token], 1)[0]
        self._guessed.append(token)
        return row
