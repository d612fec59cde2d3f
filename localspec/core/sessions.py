"""Parts of sessions that engines share: split models, texts in pairs, hidden states, the shape of a tree."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.contracts import EarlyExit, PairSession
from localspec.core.types import PAD, Branch, Logits, Tokens, shared_prefix
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


class PairedText(PairSession):
    """Which tokens of a text are read in which pair; a pair's first token may wait for its second one.

    An engine reads the pairs, and its head the first token of the next one; a rewind only changes numbers.
    """

    chunk: int = 512

    def __init__(self, context: int, vocab: int) -> None:
        self._context, self._vocab = context, vocab
        self._firsts: list[int] = []  # the first token of each pair
        self._ends: list[int] = []  # the tokens of the text up to the end of each pair
        self._waiting: list[int] = []  # the last token of the text, if its pair is not complete
        self._sure: float | None = None

    def confidence(self) -> float | None:
        """Return how sure the head is of the last row."""
        return self._sure

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        text, kept = [*self._waiting, *tokens], len(self._ends)
        if (total := self._length(kept) + len(text)) > self._context:
            raise ContextFull(total, self._context)
        found = [np.empty((0, self._vocab), np.float32)]
        if not tokens:
            return found[0]
        whole = len(text) // 2 * 2
        asked = max(rows - len(text) + whole, 0)  # rows of tokens in whole pairs
        if whole:
            found.append(self._append(text[:whole:2], text[1:whole:2], asked))
        self._waiting = text[whole:]
        if rows:
            self._sure = None
        if rows and self._waiting:
            found = [part.copy() for part in found]  # views until the next pass
            found.append(self._last(self._waiting[0]))
        parts = [part for part in found if len(part)]
        return parts[0] if len(parts) == 1 else np.concatenate(found)

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        count = len(self._ends)
        if length >= (total := self._length(count) + len(self._waiting)):
            return total
        kept = bisect_right(self._ends, length)
        cut = length - self._length(kept)  # tokens of the pair that is cut
        self._waiting = self._firsts[kept : kept + 1] if cut and kept < count else self._waiting[:cut]
        del self._firsts[kept:], self._ends[kept:]
        self._keep(kept)
        return length

    def _length(self, pairs: int) -> int:
        """Return the tokens in the first pairs."""
        return self._ends[pairs - 1] if pairs else 0

    def _append(self, firsts: list[int], seconds: list[int], rows: int) -> Logits:
        logits = self._read(firsts, seconds, len(self._ends), rows)
        self._firsts += firsts
        for token in seconds:
            self._ends.append(self._length(len(self._ends)) + (1 if token == PAD else 2))
        return logits

    def _last(self, waiting: int) -> Logits:
        """Return the row [1, vocab] after the waiting token: the head's, if it is sure enough of it."""
        sure = self._ask(waiting, len(self._ends))
        if sure >= self.least:
            self._sure = sure
            return self._told()
        logits = self._append([waiting], [PAD], 1)
        self._waiting = []
        return logits

    @abstractmethod
    def _read(self, firsts: list[int], seconds: list[int], at: int, rows: int) -> Logits:
        """Read pairs from number `at` on; return logits [rows, vocab] of the last `rows` of their tokens.

        A second token may be PAD, which has no row of its own; the row of its pair is that of the model.
        """

    @abstractmethod
    def _ask(self, first: int, at: int) -> float:
        """Let the head read the first token of pair number `at`; return how sure it is, as a probability."""

    @abstractmethod
    def _told(self) -> Logits:
        """Return what the head said when it was asked, [1, vocab]."""

    @abstractmethod
    def _keep(self, pairs: int) -> None:
        """Keep the first `pairs`."""


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


def chains(first: int, rows: int, count: int) -> list[int]:
    """Return the parents of `count` branches in a row after each of the last `rows` of `first` tokens."""
    return [
        first - rows + row if not place else first + row * count + place - 1
        for row in range(rows)
        for place in range(count)
    ]


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
