"""Passes of a decoder over a few tokens in fixed shapes, which a CUDA card records once and replays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Tokens
from localspec.decoder.capacity import grown
from localspec.decoder.forward import Decoder, Places
from localspec.decoder.rows import FACTS, facts_of
from localspec.decoder.weights import Tensor

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)  # tokens of a recorded pass
WIDEST = WIDTHS[-1]
WARM_UPS = 2  # passes before a recording, in which libraries allocate and choose their kernels
RECORDING = threading.Lock()  # a card records one graph at a time

Replay = Callable[[], Any]


class Order(Protocol):
    """The shape of a pass: where its tokens are in the text, and which of them sees which.

    Without `parents` they are a run of tokens, each of which sees those before it.
    """

    @property
    def parents(self) -> Sequence[int]:
        """The tokens that branches follow, or other numbers where the tokens are no run."""

    def positions(self) -> NDArray[np.int64]:
        """Return the position [tokens] of each token in its text."""

    def sees(self) -> NDArray[np.bool_]:
        """Return which token [tokens, tokens] attends to which."""


class Found(NamedTuple):
    """The findings of a pass: last hidden states [tokens, width], and those after the tapped layers."""

    states: Tensor
    tapped: Tensor | None


class Buffers:
    """Keys and values [layers, key_heads, room, head_width] of one text, which double when full.

    Those of several `texts` are [layers, texts, key_heads, room, head_width].
    """

    def __init__(self, decoder: Decoder, most: int, texts: int = 0) -> None:
        self._decoder, self._most = decoder, most
        self._texts = [texts] if texts else []
        self.room = 0
        self.keys: Any = None
        self.values: Any = None

    def hold(self, needed: int, length: int) -> bool:
        """Make room for `needed` tokens, keeping the first `length`; return whether the buffers moved."""
        if needed <= self.room:
            return False
        self.room = grown(self.room, needed, self._most)
        self.keys, self.values = self._larger(self.keys, length), self._larger(self.values, length)
        return True

    def _larger(self, old: Any, length: int) -> Any:
        shape = self._decoder.shape
        like = self._decoder.weights.norm
        new = like.new_zeros((shape.layers, *self._texts, shape.key_heads, self.room, shape.head_width))
        if length:
            new[..., :length, :] = old[..., :length, :]
        return new


class Recorder:
    """Records passes on a CUDA card, all of them with the same memory for what lies between their kernels.

    They record on one stream, since torch keeps a workspace of cuBLAS for each. The first recording stays,
    since torch gives up the memory with the last one.
    """

    def __init__(self, place: Any) -> None:
        import torch

        self._torch, self._place = torch, place
        with torch.cuda.device(place):
            self._pool, self._side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self._first = self.record(lambda: torch.zeros(1, device=place))

    def record(self, run: Replay) -> Replay:
        """Return what replays `run`, whose tensors stay where they are."""
        torch, side = self._torch, self._side
        with RECORDING, torch.cuda.device(self._place):
            current = torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    run()
                graph = torch.cuda.CUDAGraph()
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    run()
                finally:
                    graph.capture_end()
            current.wait_stream(side)
        replay: Replay = graph.replay
        return replay


class Passes:
    """Passes of one text.

    A pass over up to `widest` tokens is padded to one of the `widths`, and attends to the first power of two
    of slots, from the decoder's `first_end` on, that holds the text: its keys end there, not where the
    buffers do. The keys of the padding lie behind the text, and the next pass overwrites them. Longer passes
    have the shape of their tokens. With `facts` each pass finds what greedy choices need of its logits.
    """

    def __init__(
        self,
        decoder: Decoder,
        context: int,
        recorder: Recorder | None,
        taps: Sequence[int] = (),
        *,
        facts: bool = False,
        widths: Sequence[int] = WIDTHS,
    ) -> None:
        import torch

        self._torch, self._decoder, self._taps, self._recorder = torch, decoder, tuple(taps), recorder
        self._context, self._facts_wanted = context, facts
        self._widths, self.widest = tuple(widths), (widest := widths[-1])
        self._triangle = np.tri(widest)
        self.buffers = Buffers(decoder, context + widest)
        like = decoder.weights.norm
        self._place = like.device
        self._card = self._place.type == "cuda"
        self._given, self._inputs = self._pair(3 * widest + widest * widest + 1)
        self._sent = torch.cuda.Event() if self._card else None
        # at one address for all recordings
        self.logits = torch.zeros((widest, decoder.weights.head.rows), device=self._place)
        self.facts = torch.zeros((widest, FACTS), device=self._place)
        self.gap = 0  # positions by which tokens are before their slots, behind pictures
        self.turn = 0  # of passes, each of which overwrites what the last one found
        columns = [len(like), len(like) * len(self._taps)]
        self._found = [like.new_zeros((widest, count)) for count in columns if count]
        self._recorded: dict[tuple[Any, ...], Replay] = {}

    def _pair(self, size: int) -> tuple[Any, Any]:
        """Return numbers of the main memory and the card's copy of them; on a CPU they are the same."""
        given = self._torch.zeros(size, dtype=self._torch.long, pin_memory=self._card)
        return given, self._torch.zeros_like(given, device=self._place) if self._card else given

    def short(self, tokens: Tokens, tree: Order, at: int) -> Found:
        """Read up to `widest` tokens in the shape of `tree` behind `at` tokens; `logits` has their rows."""
        count = len(tokens)
        self.turn += 1
        width = next(width for width in self._widths if width >= count)
        end = bucket(at + (self.widest if self._recorder else width), self._decoder.first_end)
        if self.buffers.hold(min(end, self._context + self.widest), at):
            self._recorded.clear()
        end = min(end, self.buffers.room)
        self._give(tokens, tree, at)
        if (key := self._key(width, end)) not in self._recorded:
            self._record(width, end)
        self._recorded[key]()
        states, *tapped = (part[:count] for part in self._found)
        return Found(states, tapped[0] if tapped else None)

    def long(self, tokens: Tokens, tree: Order, at: int) -> Found:
        """Read any number of tokens in the shape of `tree` behind `at` tokens, in a pass of its own shape."""
        self.turn += 1
        torch, total = self._torch, at + len(tokens)
        if self.buffers.hold(total, at):
            self._recorded.clear()
        slots = torch.arange(at, total, device=self._place)
        positions, mask = slots - self.gap, None
        if tree.parents:
            positions = torch.from_numpy(tree.positions() - self.gap).to(self._place)
            sees = torch.from_numpy(tree.sees()).to(self._place)
            mask = torch.cat([sees.new_ones(len(tokens), at), sees], -1)
        ids = torch.tensor(tokens, device=self._place)
        places = Places(positions, slots, total, mask)
        return Found(*self._states(ids, places))

    def embedded(self, x: Tensor, positions: Tensor, at: int) -> Tensor:
        """Read embeddings x [tokens, width] behind `at` tokens; return their last hidden states, normed.

        The positions are [tokens], or one for each rotary pair of each.
        """
        self.turn += 1
        total, buffers = at + len(x), self.buffers
        if buffers.hold(total, at):
            self._recorded.clear()
        slots = self._torch.arange(at, total, device=self._place)
        places = Places(positions, slots, total)
        return self._decoder.normed(self._decoder.through(x, places, buffers.keys, buffers.values)[0])

    def rows(self, states: Tensor) -> Tensor:
        """Return the logits [rows, vocab] of hidden states."""
        return self._decoder.logits(states)

    def _give(self, tokens: Tokens, tree: Order, at: int) -> None:
        """Write a pass's inputs where its recording reads them."""
        if self._sent:
            self._sent.synchronize()  # the copy of the last ones may still be under way
        given, count, widest = self._given.numpy(), len(tokens), self.widest
        ids, positions, slots = given[: 3 * widest].reshape(3, widest)
        ids[:count], ids[count:] = tokens, 0
        slots[:] = np.arange(at, at + widest)  # all of them, since a recording may run a wider pass
        positions[:] = np.minimum(slots, self._context - 1)
        positions[:count] = tree.positions() - self.gap
        sees = given[3 * widest : -1].reshape(widest, widest)
        sees[:] = self._triangle
        if tree.parents:
            sees[:count, :count] = tree.sees()
        given[-1] = at
        if self._sent:
            self._inputs.copy_(self._given, non_blocking=True)
            self._sent.record()

    def _key(self, width: int, end: int) -> tuple[Any, ...]:
        """Return what distinguishes a recording from the others."""
        return (width, end)

    def _pass(self, width: int, end: int) -> None:
        """Run a pass over the inputs, which alone change between its repetitions."""
        found = self._states(*self._places(width, end))
        self._put(width, found[0])
        for kept, new in zip(self._found, found, strict=False):
            kept[:width] = new

    def _places(self, width: int, end: int) -> tuple[Tensor, Places]:
        """Return the ids and the places of the inputs."""
        torch, inputs, widest = self._torch, self._inputs, self.widest
        ids, positions, slots = (part[:width] for part in inputs[: 3 * widest].split(widest))
        sees = inputs[3 * widest : -1].view(widest, widest)[:width, :width] != 0
        mask = (torch.arange(end, device=self._place) < inputs[-1]).repeat(width, 1)
        mask.index_copy_(1, slots, sees)
        return ids, Places(positions, slots, end, mask, ends=slots[-1:] + 1)

    def _states(self, ids: Tensor, places: Places) -> tuple[Tensor, Tensor | None]:
        return self._decoder.states(ids, places, self.buffers.keys, self.buffers.values, self._taps)

    def _put(self, width: int, states: Tensor) -> None:
        """Write the logits of a pass's last hidden states where they are read."""
        self.logits[:width] = self._decoder.logits(states)
        if self._facts_wanted:
            self.facts[:width] = self.facts_of(self.logits[:width])

    def facts_of(self, logits: Tensor) -> Tensor:
        """Return the facts [rows, FACTS] of logits [rows, vocab]."""
        return facts_of(logits)

    def _record(self, width: int, end: int) -> None:
        """Make a pass ready; a card records all widths at once, so that drafting meets no further delay."""
        for each in self._widths if self._recorder else (width,):
            run = partial(self._pass, each, end)
            self._recorded[self._key(each, end)] = self._recorder.record(run) if self._recorder else run


def bucket(total: int, first: int) -> int:
    """Return the slots that a pass attends to whose last token is the `total`th, `first` of them at least."""
    return max(first, 1 << (total - 1).bit_length())
