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

CHUNK = 512  # tokens of a pass over a prompt
GUESSED = 32  # tokens at most that others guessed; more are a text that the target has not read


class HeadDraft(Drafter):
    """Guesses with a head that reads the target's hidden states after some of its layers (EAGLE-3).

    Position i of its text is the token i + 1, read with the target's state of token i; after the last token
    that the target has read, the head's own states stand for the target's (Li et al. 2025, section 3.1). The
    target's true states replace them in the next step.
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
    ) -> None:
        del name, device, threads  # the engine was made from them
        states, head = target.session, draft_model.engine.session()
        if not isinstance(states, LayerStates) or not isinstance(head, HeadSession):
            raise BadValue(
                "`head` needs a target that exposes hidden states, and a head that reads them",
                "Name a head that was trained for the target: `localspec train-head`",
            )
        self._target, self._states, self._head = target, states, head
        self._context = draft_model.engine.context
        self._sure: list[int] = []  # the tokens that were read with the target's own states

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

        behind = max(len(text) - 1 - shared_prefix(self._sure, text[1:]), 1)
        for length in range(len(text), self._context + 1):
            if length < 2:  # no token lies before the only one
                return
            yield LazyGuess(draw, behind=behind)
            if len(text) == length:
                return
            behind = 1

    def _first(self, text: list[int]) -> Row:
        """Read what the head has missed of `text`; return the logits after its last token.

        The target has read all but the last token, and guesses that others made since, if there are any:
        these are read with the head's own states, a pass each.
        """
        known = self._known(text)
        at = self._head.rewind(min(shared_prefix(self._sure, text[1:]), known - 1))
        del self._sure[at:]
        row: Row = np.empty(0, np.float32)
        while at < known:
            end = min(at + CHUNK, known)
            self._head.lead(self._head.fuse(self._states.states()[at:end]))
            found = self._head.forward(text[at + 1 : end + 1], int(end == known))
            self._sure += text[at + 1 : end + 1]
            row, at = found[-1] if len(found) else row, end
        for token in text[known + 1 :]:
            row = self._next(token)
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
        return row
