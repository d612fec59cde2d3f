"""One text in a diffusion model: passes over blocks, and the keys of earlier ones where they are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from localspec.core.blocks import visibility
from localspec.core.blocks.types import Block, BlockPass
from localspec.core.contracts import BlockSession
from localspec.core.types import Logits, Tokens
from localspec.errors import ContextFull
from localspec.formats.diffusion.decoder import BlockDecoder, Keys
from localspec.formats.huggingface.torch_devices import use_threads

FIRST_ROOM = 256  # tokens of a new text's buffers; doubled when full


class DiffusionSession(BlockSession):
    """A text whose latest block is read together with the one that is filled in next.

    In a causal model the keys of earlier blocks are kept, and a rewind only changes numbers. In others
    nothing is kept but the tokens.
    """

    def __init__(self, decoder: BlockDecoder, place: Any, dtype: Any, threads: int, ahead: int) -> None:
        shape = decoder.shape
        self.mask, self.block, self.context = shape.mask, shape.block, shape.context
        self.causal, self.shifted = shape.causal, shape.shifted
        self._decoder, self._place, self._dtype = decoder, place, dtype
        self._threads, self._ahead = threads, ahead
        self._text: list[int] = []
        self._kept: list[Keys] = []  # buffers [key heads, room, head width] by layer
        self._length = 0  # tokens whose keys are kept

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab], each of a pass of its own."""
        self._limit(len(self._text) + len(tokens))
        begin = len(self._text)
        self._text += tokens
        whole = len(self._text) // self.block * self.block - self.block  # the latest is read with the next
        if self.causal and whole > self._read() and len(tokens) > self.block:
            self._pass(whole, Block((), ()))
        found = np.empty((rows, self._decoder.shape.vocab), np.float32)
        for row in range(rows):
            found[row] = self._next(begin + len(tokens) - rows + row + 1)
        return found

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens."""
        del self._text[length:]
        self._length = min(self._length, len(self._text) // self.block * self.block)
        return len(self._text)

    def denoise(self, block: Block, *, attention: bool = False) -> BlockPass:
        """Return the pass over a block after the text."""
        return self._pass(len(self._text), block, attention=attention)

    def embeddings(self, tokens: Tokens) -> Logits:
        """Return the embeddings [n, width] of tokens."""
        import torch

        with torch.inference_mode():
            found: Logits = self._decoder.embed(self._ids(tokens)).float().cpu().numpy()
        return found

    def _read(self) -> int:
        """Return the number of tokens whose keys are kept."""
        return self._length

    def _next(self, length: int) -> Logits:
        """Return the logits [vocab] of the first mask of a block after `length` tokens of the text."""
        first = length // self.block * self.block if self.causal else length
        given = self._text[first:length]
        count = max(min(self.block, self.context - first), len(given) + 1)
        tokens = [*given, *[self.mask] * (count - len(given))]
        found: Logits = self._pass(first, Block(tokens, range(first, first + count))).logits[len(given)]
        return found

    def _pass(self, length: int, block: Block, *, attention: bool = False) -> BlockPass:
        """Return the pass over a block after the first `length` tokens, and keep the keys of these."""
        import torch

        assert not self.causal or length % self.block == 0
        if self._threads:
            use_threads(self._threads)
        past = min(self._length, length) if self.causal else 0
        unread = self._text[past:length]
        self._limit(max([length, *(position + 1 for position in block.positions)]))
        ahead = 0 if self.causal else min(self._ahead, self.context - max(block.positions) - 1)
        tokens = [*unread, *block.tokens, *[self.mask] * ahead]
        if not tokens:
            return BlockPass(np.empty((0, self._decoder.shape.vocab), np.float32))
        with torch.inference_mode():
            inputs = self._decoder.embed(self._ids(tokens))
            if block.offsets is not None:
                at = slice(len(unread), len(unread) + len(block.tokens))
                inputs[at] += torch.from_numpy(block.offsets).to(self._place, self._dtype)
            found = self._decoder.run(
                inputs,
                self._ids(self._positions(past, length, block, ahead)),
                self._visible(past, length, block, ahead),
                self._held(past) if past else None,
                attention=attention,
            )
            if self.causal:
                self._keep(found.keys, past, length)
            return self._result(found.hidden, found.attention, past, len(unread), len(block.tokens))

    def _result(self, hidden: Any, attention: Any, past: int, unread: int, count: int) -> BlockPass:
        """Return the logits and the attention of the block, by the rows that predict its tokens."""
        first = unread - self.shifted
        assert first >= 0 or not count, "a shifted model predicts a token from the one before it"
        rows = slice(first, first + count)
        logits: Logits = self._decoder.logits(hidden[rows]).float().cpu().numpy()
        if attention is None:
            return BlockPass(logits)
        columns = slice(past + unread, past + unread + count)
        return BlockPass(logits, attention[rows, columns].float().cpu().numpy())

    def _positions(self, past: int, length: int, block: Block, ahead: int) -> list[int]:
        """Return the positions of all tokens of a pass."""
        behind = max(block.positions, default=length) + 1
        return [*range(past, length), *block.positions, *range(behind, behind + ahead)]

    def _visible(self, past: int, length: int, block: Block, ahead: int) -> Any:
        """Return which of all tokens [tokens, past + tokens] those of a pass see, None for all."""
        import torch

        unread, count = length - past, len(block.tokens)
        own = count - block.beside
        if block.visible is None and (not self.causal or not unread):
            return None
        size = unread + count + ahead
        table = np.ones((size, past + size), bool)
        inner = table[:, past:]
        if self.causal:
            inner[:unread, :unread] = visibility.blockwise(range(past, length), self.block)
            inner[:unread, unread:] = False
        outside = [*range(unread), *range(unread + count, size)]
        inner[outside, unread + own : unread + count] = False
        if block.visible is not None:
            inner[unread : unread + count, unread : unread + count] = block.visible
        return torch.from_numpy(table).to(self._place)

    def _held(self, past: int) -> list[Keys]:
        return [(keys[:, :past], values[:, :past]) for keys, values in self._kept]

    def _keep(self, keys: list[Keys], past: int, length: int) -> None:
        """Keep the keys of the tokens from `past` to `length`, the first of a pass."""
        if length <= self._length:
            return
        room = self._kept[0][0].shape[1] if self._kept else 0
        if room < length:
            room = max(length, min(max(2 * room, FIRST_ROOM), self.context))
            self._kept = [
                (_larger(old[0], new[0], past, room), _larger(old[1], new[1], past, room))
                for old, new in zip(self._kept or [(None, None)] * len(keys), keys, strict=True)
            ]
        for held, new in zip(self._kept, keys, strict=True):
            for buffer, values in zip(held, new, strict=True):
                buffer[:, past:length] = values[:, : length - past]
        self._length = length

    def _limit(self, total: int) -> None:
        if total > self.context:
            raise ContextFull(total, self.context)

    def _ids(self, values: Tokens) -> Any:
        import torch

        return torch.tensor(list(values), dtype=torch.long, device=self._place)


def _larger(old: Any, like: Any, length: int, room: int) -> Any:
    """Return a buffer [heads, room, width] that starts with the first `length` tokens of `old`."""
    new = like.new_zeros((like.shape[0], room, like.shape[2]))
    if old is not None and length:
        new[:, :length] = old[:, :length]
    return new
