"""Parts of sessions that engines share: a split model, a buffer of hidden states, the shape of a tree."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.contracts import EarlyExit
from localspec.core.types import Branch, Logits, Tokens, shared_prefix
from localspec.errors import ContextFull


class SplitSession(EarlyExit):
    """A model in two parts: the first layers may read ahead, and the other layers continue from there.

    The first layers read each token once. Their hidden states of tokens ahead of the text are kept until the
    text takes them in or continues otherwise: the exit query cache of LayerSkip (Elhoushi et al. 2024,
    section 3.3). The KV cache needs no copy, because each part has layers of its own. A rewind drops the
    read-ahead.
    """

    def __init__(self, context: int, vocab: int) -> None:
        self._context = context
        self._vocab = vocab
        self._length = 0  # tokens that every layer has read
        self._ahead: list[int] = []  # tokens after them that only the first layers have read
        self._hidden: list[Any] = []  # the first layers' hidden states of each

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return the logits [rows, vocab] of the last `rows` of them."""
        self._read_ahead(tokens)
        if not tokens:
            return np.empty((0, self._vocab), np.float32)
        found = self._rest(self._hidden[: len(tokens)], self._length, rows)
        self._length += len(tokens)
        del self._ahead[: len(tokens)]
        del self._hidden[: len(tokens)]
        return found

    def early(self, tokens: Tokens, rows: int) -> Logits:
        """Return the first layers' logits [rows, vocab] of the last `rows` of `tokens`."""
        self._read_ahead(tokens)
        return self._leave(self._hidden[len(tokens) - rows : len(tokens)])

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        self._ahead, self._hidden = [], []
        self._length = self._kept(length) if length < self._length else self._length
        return self._length

    def _read_ahead(self, tokens: Tokens) -> None:
        """Read `tokens`, which follow the text, through the first layers, except those already read."""
        total = self._length + len(tokens)
        if total > self._context:
            raise ContextFull(total, self._context)
        shared = shared_prefix(self._ahead, tokens)
        if shared < len(tokens):
            del self._ahead[shared:]  # before the pass: it overwrites their keys even if it is interrupted
            del self._hidden[shared:]
            self._hidden += self._first(tokens[shared:], self._length + shared)
            self._ahead += tokens[shared:]

    def _kept(self, length: int) -> int:
        """Return how many tokens a rewind to `length` really keeps."""
        return length

    @abstractmethod
    def _first(self, tokens: Tokens, at: int) -> Sequence[Any]:
        """Read `tokens` from position `at` through the first layers; return the hidden state of each."""

    @abstractmethod
    def _rest(self, hidden: Sequence[Any], at: int, rows: int) -> Logits:
        """Continue from the first layers' hidden states of the tokens from `at`; return [rows, vocab]."""

    @abstractmethod
    def _leave(self, hidden: Sequence[Any]) -> Logits:
        """Return the logits [len(hidden), vocab] of the head applied right after the first layers."""


FIRST_CAPACITY = 256  # tokens; doubled when full


class HiddenStateBuffer:
    """Hidden states of the tokens of one text, in a buffer that grows by doubling.

    `halved` ones are kept in float16, the few numbers beyond its range as the nearest in it.
    """

    def __init__(self, *, halved: bool = False) -> None:
        self._kind = np.float16 if halved else np.float32
        self._most = np.finfo(self._kind).max
        self._kept: Any = np.empty((0, 0), self._kind)

    def put(self, at: int, new: Logits) -> None:
        """Write `new` [tokens, width] from position `at` on."""
        end = at + len(new)
        if end > len(self._kept):
            grown = np.empty((max(end, 2 * len(self._kept), FIRST_CAPACITY), new.shape[1]), self._kind)
            if at:
                grown[:at] = self._kept[:at]
            self._kept = grown
        if self._kind is np.float16:
            new = new.clip(-self._most, self._most)
        self._kept[at:end] = new

    def first(self, length: int) -> Logits:
        """Return a view [length, width] of the states of the first `length` tokens."""
        kept: Logits = self._kept[:length]
        return kept


class Tree:
    """The shape of a pass: a run of `path` tokens from position `at` on, then branches beside it.

    `parents` are the numbers of the pass's tokens that its last tokens, the branches, follow.
    """

    def __init__(self, at: int, path: int, parents: Sequence[int]) -> None:
        self.path, self.parents = path, parents
        self.size = path + len(parents)
        self._at = at

    @staticmethod
    def of(at: int, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Tree:
        """Return the shape of a pass over `tokens` and `branches`, which name their parents by rows."""
        return Tree(at, len(tokens), [len(tokens) - rows + branch.parent for branch in branches])

    def positions(self) -> NDArray[np.int64]:
        """Return the position [size] of each token in its text."""
        found = np.arange(self._at, self._at + self.size)
        for token, parent in enumerate(self.parents, self.path):
            found[token] = found[parent] + 1
        return found

    def sees(self) -> NDArray[np.bool_]:
        """Return which token [size, size] attends to which."""
        found = np.tri(self.size, dtype=bool)
        for token, parent in enumerate(self.parents, self.path):
            found[token] = found[parent]
            found[token, token] = True
        return found
