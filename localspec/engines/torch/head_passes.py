"""Passes of a head over one text; a CUDA card records those over a few tokens once and replays them."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from localspec.core.types import Tokens
from localspec.decoder.capacity import grown
from localspec.decoder.passes import Recorder, Replay, bucket
from localspec.decoder.rows import FACTS, facts_of
from localspec.decoder.weights import Tensor
from localspec.formats.heads.torch_head import TorchHead

WIDTHS = (1, 2, 4, 8, 16)  # tokens of a recorded pass
WIDEST = WIDTHS[-1]
FIRST_END = 256  # slots that a recorded pass attends to at least


class Read(NamedTuple):
    """The head's own states [rows, width], their logits [rows, kept], and the facts of those on a card."""

    own: Tensor
    logits: Tensor
    facts: Tensor | None


class HeadPasses:
    """The keys of one text, and passes that append to it.

    On a card a pass over up to WIDEST tokens is padded to one of WIDTHS, and attends to the first power of
    two of slots that holds the text. The keys of the padding lie behind the text, and the next pass
    overwrites them. What a pass found is valid until the next one.
    """

    def __init__(self, head: TorchHead, dtype: Any, recorder: Recorder | None) -> None:
        import torch

        self._torch, self._head, self._recorder = torch, head, recorder
        self._place = place = head.embedding.device
        shape = head.shape
        self._empty = torch.zeros((shape.key_heads, 0, shape.head_width), dtype=dtype, device=place)
        self._keys = self._values = self._empty
        self.turn = 0  # of passes, each of which overwrites what the last one found
        self._recorded: dict[tuple[int, int], Replay] = {}
        if recorder:
            card = place.type == "cuda"
            self._given = torch.zeros(WIDEST + 1, dtype=torch.long, pin_memory=card)
            self._sent = torch.cuda.Event() if card else None
            self._inputs = torch.zeros(WIDEST + 1, dtype=torch.long, device=place)  # ids, tokens before them
            self._led = torch.zeros((WIDEST, shape.width), dtype=dtype, device=place)
            self._own = torch.zeros_like(self._led)
            self._logits = torch.zeros((WIDEST, shape.kept), device=place)
            self._facts = torch.zeros((WIDEST, FACTS), device=place)

    def read(self, tokens: Tokens, led: Tensor, at: int, rows: int) -> Read:
        """Read `tokens` with the states `led` [tokens, width] behind `at` tokens."""
        self.turn += 1
        count, total = len(tokens), at + len(tokens)
        if self._recorder and count <= WIDEST:
            self._replay(tokens, led, at)
            first = count - rows
            return Read(self._own[first:count], self._logits[first:count], self._facts[first:count])
        self._hold(total, at)
        slots = self._torch.arange(at, total, device=self._place)
        ids = self._torch.tensor(tokens, device=self._place)
        own = self._states(ids, led, slots, total)[count - rows :]
        logits = self._head.logits(own)
        return Read(own, logits, facts_of(logits.float()) if self._recorder else None)

    def _replay(self, tokens: Tokens, led: Tensor, at: int) -> None:
        """Run a recorded pass; a card records all widths at once, so that drafting meets no further delay."""
        count = len(tokens)
        end = bucket(at + WIDEST, FIRST_END)
        self._hold(end, at)
        if self._sent:
            self._sent.synchronize()  # the copy of the last inputs may still be under way
        given = self._given.numpy()
        given[:count], given[count:-1], given[-1] = tokens, 0, at
        self._inputs.copy_(self._given, non_blocking=True)
        if self._sent:
            self._sent.record()
        self._led[:count] = led
        width = next(width for width in WIDTHS if width >= count)
        if (width, end) not in self._recorded:
            assert self._recorder is not None
            for each in WIDTHS:
                self._recorded[each, end] = self._recorder.record(partial(self._pass, each, end))
        self._recorded[width, end]()

    def _pass(self, width: int, end: int) -> None:
        """Run a pass over the inputs, which alone change between its repetitions."""
        slots = self._inputs[-1] + self._torch.arange(width, device=self._place)
        own = self._states(self._inputs[:width], self._led[:width], slots, end)
        logits = self._head.logits(own).float()
        self._own[:width], self._logits[:width] = own, logits
        self._facts[:width] = facts_of(logits)

    def _states(self, ids: Tensor, led: Tensor, slots: Tensor, end: int) -> Tensor:
        """Return the head's own states of tokens at `slots`, which attend to those up to themselves."""
        queries, keys, values = self._head.project(ids, led, slots)
        self._keys.index_copy_(1, slots, keys)
        self._values.index_copy_(1, slots, values)
        sees = self._torch.arange(end, device=self._place) <= slots[:, None]
        mixed = self._head.attend(queries, self._keys[:, :end], self._values[:, :end], sees)
        return self._head.finish(led, mixed)

    def _hold(self, needed: int, length: int) -> None:
        """Make room for `needed` tokens, keeping the first `length`; buffers that move end the recordings."""
        if needed <= self._keys.shape[1]:
            return
        room = grown(self._keys.shape[1], needed, bucket(self._head.shape.context + WIDEST, FIRST_END))
        self._keys, self._values = (self._larger(old, room, length) for old in (self._keys, self._values))
        self._recorded.clear()

    def _larger(self, old: Tensor, room: int, length: int) -> Tensor:
        new = old.new_zeros((old.shape[0], room, old.shape[2]))
        new[:, :length] = old[:, :length]
        return new
