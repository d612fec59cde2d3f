"""A model that needs nothing: a fake for tests, an example for readers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np

from localspec.core.contracts import Engine, Rows, Session, Tokens
from localspec.errors import ContextFull
from localspec.plugins import Option

STATES = 509  # prime


class Toy(Engine):
    """Writes tokens by a hash of the whole text, in numpy; no weights, no text.

    A row is a fixed random row of the text's hash, so a wrong rewind shows at once. `noise` blurs the rows:
    a toy with some is a draft for one without. `grain` is what a rewind can keep: every position (1), only
    each n-th (n), nothing (0).
    """

    def __init__(
        self,
        model: Path | None = None,
        *,
        width: Annotated[int, Option("tokens in the vocabulary", least=2, most=200_000)] = 64,
        context: Annotated[int, Option("most tokens of a text", least=1, most=10_000_000)] = 4096,
        seed: Annotated[int, Option("which toy model", least=0, most=2**31)] = 0,
        noise: Annotated[float, Option("how far it is from the toy without noise", least=0, most=100)] = 0.0,
        grain: Annotated[int, Option("what a rewind keeps: multiples of it, 0 nothing", least=0)] = 1,
    ) -> None:
        del model
        self.vocab = width
        self.context = context
        self.grain = grain
        shape = (STATES, width)
        rows = np.random.default_rng(seed).normal(scale=2.0, size=shape)
        blur = np.random.default_rng(seed + 1).normal(scale=1.0, size=shape)
        self.table: Rows = (rows + noise * blur).astype(np.float32)

    def session(self) -> Session:
        """Return a new, empty session."""
        return ToySession(self)


class ToySession(Session):
    """Keeps the hash after each token."""

    def __init__(self, engine: Toy) -> None:
        self._engine = engine
        self._states = [1]

    def forward(self, tokens: Tokens, rows: int) -> Rows:
        """Append `tokens` and return logits [rows, vocab]."""
        length = len(self._states) - 1 + len(tokens)
        if length > self._engine.context:
            raise ContextFull(length, self._engine.context)
        for token in tokens:
            self._states.append((self._states[-1] * 31 + token + 7) % STATES)
        return self._engine.table[self._states[len(self._states) - rows :]]

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens, down to a multiple of the engine's grain."""
        grain = self._engine.grain
        if length < len(self._states) - 1:
            length = length // grain * grain if grain else 0
            del self._states[length + 1 :]
        return len(self._states) - 1
