"""A session in two parts: the first layers of a model may read ahead of the rest, which go on from there."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.core.contracts import EarlyExit
from localspec.core.types import Logits, Tokens, shared_prefix
from localspec.errors import ContextFull


class SplitSession(EarlyExit):
    """Reads each token once through the first layers, whoever asked for it first.

    What they made of the tokens behind the text is kept until the text takes them in or goes on otherwise:
    LayerSkip's cache of exit queries (Elhoushi et al. 2024, section 3.3). Keys and values need no second
    cache, since each part has layers of its own. A rewind forgets what was read ahead.
    """

    def __init__(self, context: int, vocab: int) -> None:
        self._context = context
        self._vocab = vocab
        self._length = 0  # tokens that every layer has read
        self._ahead: list[int] = []  # those behind them that the first layers have read
        self._hidden: list[Any] = []  # what they made of each

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab] after each of the last `rows` of them."""
        self._read_ahead(tokens)
        if not tokens:
            return np.empty((0, self._vocab), np.float32)
        found = self._rest(self._hidden[: len(tokens)], self._length, rows)
        self._length += len(tokens)
        del self._ahead[: len(tokens)]
        del self._hidden[: len(tokens)]
        return found

    def early(self, tokens: Tokens, rows: int) -> Logits:
        """Return the first layers' logits [rows, vocab] after each of the last `rows` of `tokens`."""
        self._read_ahead(tokens)
        return self._leave(self._hidden[len(tokens) - rows : len(tokens)])

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; what lies behind is written over by the next pass."""
        self._ahead, self._hidden = [], []
        self._length = self._kept(length) if length < self._length else self._length
        return self._length

    def _read_ahead(self, tokens: Tokens) -> None:
        """Let the first layers read those of `tokens`, which follow the text, that they have not read."""
        total = self._length + len(tokens)
        if total > self._context:
            raise ContextFull(total, self._context)
        shared = shared_prefix(self._ahead, tokens)
        if shared < len(tokens):
            del self._ahead[shared:]  # before the pass: it writes over their keys, even if it is interrupted
            del self._hidden[shared:]
            self._hidden += self._first(tokens[shared:], self._length + shared)
            self._ahead += tokens[shared:]

    def _kept(self, length: int) -> int:
        """Return how many of the first `length` tokens a rewind to there keeps."""
        return length

    @abstractmethod
    def _first(self, tokens: Tokens, at: int) -> Sequence[Any]:
        """Read `tokens` from position `at` on through the first layers; return what they made of each."""

    @abstractmethod
    def _rest(self, hidden: Sequence[Any], at: int, rows: int) -> Logits:
        """Go on from what the first layers made of the tokens from `at` on; return logits [rows, vocab]."""

    @abstractmethod
    def _leave(self, hidden: Sequence[Any]) -> Logits:
        """Return the logits [len(hidden), vocab] that the head gives right after the first layers."""


FIRST_ROOM = 256  # tokens; it doubles when they are full


class States:
    """Vectors of the tokens of one text, in a buffer that grows by doubling; a rewind is a number."""

    def __init__(self) -> None:
        self._kept: Logits = np.empty((0, 0), np.float32)

    def put(self, at: int, new: Logits) -> None:
        """Keep `new` [tokens, width] from position `at` on, in place of what was there."""
        end = at + len(new)
        if end > len(self._kept):
            grown = np.empty((max(end, 2 * len(self._kept), FIRST_ROOM), new.shape[1]), np.float32)
            if at:
                grown[:at] = self._kept[:at]
            self._kept = grown
        self._kept[at:end] = new

    def first(self, length: int) -> Logits:
        """Return a view [length, width] of those of the first `length` tokens."""
        return self._kept[:length]
