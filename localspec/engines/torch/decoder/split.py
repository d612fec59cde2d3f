"""A text in a decoder of our own whose first layers may read ahead (`early_exit`)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from localspec.core.sessions import SplitSession, Tree
from localspec.core.types import Logits, Tokens
from localspec.decoder.forward import Places
from localspec.decoder.own import CARD_CHUNK, OwnDecoder, RowReader
from localspec.decoder.passes import WIDEST, Passes
from localspec.decoder.weights import Tensor
from localspec.formats.huggingface.torch_devices import memory_errors

Found = TypeVar("Found")
FIRST, REST, LEAVE = "first", "rest", "leave"


class SplitPasses(Passes):
    """Passes through the first layers, through those after `layer`, and from either to logits.

    All three find hidden states [tokens, width] without the last norm, and the latter two read them.
    """

    def __init__(self, own: OwnDecoder, layer: int) -> None:
        super().__init__(own.decoder, own.context, own.recorder, facts=own.keeps_rows)
        self._layer, self._part = layer, FIRST
        like = own.decoder.weights.norm
        self._before = like.new_zeros((WIDEST, len(like)))

    def through(self, part: str, x: Tensor | None, tokens: Tokens, at: int) -> Tensor:
        """Return what a part makes of `tokens` behind `at` others, whose hidden states `x` it reads."""
        self._part = part
        if len(tokens) > WIDEST:
            if x is not None:
                self._ahead = x
            return self.long(tokens, Tree(at, len(tokens), []), at).states
        if x is not None:
            self._before[: len(tokens)] = x
        return self.short(tokens, Tree(at, len(tokens), []), at).states

    def _key(self, width: int, end: int) -> tuple[int, int, str]:
        return (width, 0 if self._part == LEAVE else end, self._part)

    def _pass(self, width: int, end: int) -> None:
        if self._part == LEAVE:
            self._leave(width, self._before[:width])
            return
        ids, places = self._places(width, end)
        x = self._before[:width] if self._part == REST else self._decoder.embedded(ids)
        states = self._through(x, places)
        self._found[0][:width] = states
        if self._part == REST:
            self._leave(width, states)

    def _leave(self, width: int, states: Tensor) -> None:
        self._put(width, self._decoder.normed(states))

    def _states(self, ids: Tensor, places: Places) -> tuple[Tensor, None]:
        return self._through(
            self._decoder.embedded(ids) if self._part == FIRST else self._ahead, places
        ), None

    def _through(self, x: Tensor, places: Places) -> Tensor:
        count, layer = self._decoder.shape.layers, self._layer
        layers = range(layer) if self._part == FIRST else range(layer, count)
        return self._decoder.through(x, places, self.buffers.keys, self.buffers.values, layers)[0]


class OwnSplitSession(SplitSession):
    """A text whose keys are all kept; hidden states of tokens ahead stay on the device."""

    def __init__(self, own: OwnDecoder, layer: int) -> None:
        import torch

        super().__init__(own.context, own.vocab)
        self._torch, self._own, self._reader = torch, own, RowReader(own)
        if own.place.type == "cuda":
            self.chunk = CARD_CHUNK
        with torch.inference_mode():
            self._passes = own.idle_passes(layer) or SplitPasses(own, layer)
        weakref.finalize(self, own.give_back, self._passes, layer).atexit = False

    def _first(self, tokens: Tokens, at: int) -> Sequence[Any]:
        def read() -> Sequence[Any]:
            return list(self._passes.through(FIRST, None, tokens, at).clone())

        return self._guarded(read, len(tokens))

    def _rest(self, hidden: Sequence[Any], at: int, rows: int) -> Logits:
        def read() -> Logits:
            states = self._passes.through(REST, self._torch.stack(list(hidden)), [0] * len(hidden), at)
            return self._rows(states, len(hidden), rows)

        return self._guarded(read, len(hidden))

    def _leave(self, hidden: Sequence[Any]) -> Logits:
        if not hidden:
            return np.empty((0, self._vocab), np.float32)

        def read() -> Logits:
            states = self._torch.stack(list(hidden))
            if len(hidden) <= WIDEST:
                self._passes.through(LEAVE, states, [0] * len(hidden), 0)
            return self._rows(states, len(hidden), len(hidden))

        return self._guarded(read, 0)

    def _rows(self, states: Tensor, size: int, rows: int) -> Logits:
        normed = self._own.decoder.normed
        return self._reader(self._passes, lambda: normed(states[size - rows :]), size, rows)

    def _guarded(self, run: Callable[[], Found], count: int) -> Found:
        total = self._length + count
        with self._torch.inference_mode(), memory_errors(self._own.place, f"a text of {total} tokens"):
            return run()
