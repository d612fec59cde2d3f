"""Passes of a head over one text; a CUDA card records those over a few tokens once and replays them."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from localspec.core.types import Tokens
from localspec.decoder.capacity import grown
from localspec.decoder.passes import Recorder, Replay, bucket
from localspec.decoder.rows import FACTS
from localspec.decoder.weights import Tensor
from localspec.engines.torch.head_layer import FEW, HeadLayer, Kept

WIDTHS = (1, 2, 4, 8, FEW)  # tokens of a recorded pass
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
    overwrites them. The findings of a pass are valid until the next one.
    """

    def __init__(self, layer: HeadLayer, dtype: Any, recorder: Recorder | None) -> None:
        import torch

        self._torch, self._layer, self._recorder = torch, layer, recorder
        self._place, shape = (place := layer.place), layer.shape
        empty = torch.zeros((shape.key_heads, 0, shape.head_width), dtype=dtype, device=place)
        self._kept = Kept(empty, empty, None)
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
        own, normed = self._layer.read(ids, led, slots, total, self._kept)
        logits = self._layer.logits(normed[count - rows :])
        facts = self._layer.facts(logits) if self._recorder else None
        return Read(own[count - rows :], logits, facts)

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
        own, normed = self._layer.read(self._inputs[:width], self._led[:width], slots, end, self._kept)
        logits = self._layer.logits(normed)
        self._own[:width], self._logits[:width] = own, logits
        self._facts[:width] = self._layer.facts(logits)

    def _hold(self, needed: int, length: int) -> None:
        """Make room for `needed` tokens, keeping the first `length`; buffers that move end the recordings."""
        keys, values, _ = self._kept
        if needed <= (room := keys.shape[1]):
            return
        room = grown(room, needed, bucket(self._layer.shape.context + WIDEST, FIRST_END))
        keys, values = (self._larger(old, room, length) for old in (keys, values))
        self._kept = Kept(keys, values, self._layer.turns(room))
        self._recorded.clear()

    def _larger(self, old: Tensor, room: int, length: int) -> Tensor:
        new = old.new_zeros((old.shape[0], room, old.shape[2]))
        new[:, :length] = old[:, :length]
        return new
