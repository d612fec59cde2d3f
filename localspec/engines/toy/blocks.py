"""A toy that fills in masks: its logits are chosen by a hash of all that a token sees."""

from __future__ import annotations

import numpy as np

from localspec.core.blocks.types import Block, BlockPass
from localspec.core.contracts import BlockSession
from localspec.core.types import Logits, Tokens
from localspec.errors import ContextFull

STATES = 509  # prime
WIDTH = 8  # of an embedding


def next_state(state: int, token: int) -> int:
    """Return the hash of a text with one more token."""
    return (state * 31 + token + 7) % STATES


class ToyBlockSession(BlockSession):
    """Keeps the hash after each token. Its mask is the last token of the vocabulary.

    What a token predicts depends on the text before the block, on its position, and on the tokens it sees
    with their positions. So a wrong table or a wrong position shows at once.
    """

    def __init__(self, table: Logits, context: int, block: int) -> None:
        self._table, self.context, self.block = table, context, block
        self.mask = table.shape[1] - 1
        self._text: list[int] = []
        self._states = [1]  # the hash after each token
        self._embeddings = np.random.default_rng(7).normal(size=(table.shape[1], WIDTH)).astype(np.float32)
        self._spread = np.random.default_rng(8).uniform(0.1, 1.0, STATES).astype(np.float32)

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        self._limit(len(self._states) - 1 + len(tokens))
        self._text += tokens
        for token in tokens:
            self._states.append(next_state(self._states[-1], token))
        found = [self._next(len(self._text) - rows + row + 1) for row in range(rows)]
        return np.array(found, np.float32).reshape(rows, self._table.shape[1])

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens."""
        del self._states[length + 1 :], self._text[length:]
        return len(self._states) - 1

    def denoise(self, block: Block, *, attention: bool = False) -> BlockPass:
        """Return the pass over a block after the text."""
        return self._pass(len(self._states) - 1, block, attention)

    def embeddings(self, tokens: Tokens) -> Logits:
        """Return the embeddings [n, width] of tokens."""
        return self._embeddings[list(tokens)]

    def _next(self, length: int) -> Logits:
        first = length // self.block * self.block
        given = self._text[first:length]
        tokens = [*given, *[self.mask] * (self.block - len(given))]
        row: Logits = self._pass(first, Block(tokens, range(first, first + self.block)), False).logits[
            len(given)
        ]
        return row

    def _pass(self, length: int, block: Block, attention: bool) -> BlockPass:
        assert length % self.block == 0
        count = len(block.tokens)
        sees = np.ones((count, count), bool) if block.visible is None else block.visible
        tokens, positions = np.array(block.tokens), np.array(block.positions)
        parts = (tokens + 3) * (positions + 11) * 17 % STATES
        if block.offsets is not None:
            parts = (parts + np.rint(np.abs(block.offsets).sum(1) * 100).astype(np.int64)) % STATES
        states = (self._states[length] + sees @ parts + positions * 5) % STATES
        weights = self._spread[(states[:, None] + parts[None]) % STATES] * sees
        shown = weights / weights.sum(1, keepdims=True) if attention else None
        return BlockPass(self._table[states], shown)

    def _limit(self, total: int) -> None:
        if total > self.context:
            raise ContextFull(total, self.context)
