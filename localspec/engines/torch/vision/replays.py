"""Prompts with pictures that a card has read before: from the second of a shape on it replays the pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from localspec.decoder.passes import Replay
from localspec.decoder.weights import Tensor
from localspec.engines.torch.vision.choosing import words_among
from localspec.engines.torch.vision.eyes import Records
from localspec.engines.torch.vision.memory import LayerRows
from localspec.engines.torch.vision.reader import Reader
from localspec.pictures.schedule import Schedule

STEP = 64  # tokens; prompts are padded to a multiple, so that many have one shape
KEPT = 4  # shapes whose recordings are kept

Shape = tuple[Any, ...]


class Replays:
    """Reads prompts at the beginning of a text, in which visual tokens may sit out layers.

    A prompt is padded at its end, which no token before sees. The first of a shape is read as any other text:
    a recording costs several passes. Small steps then cost no launches, which a short pass waits for.
    """

    def __init__(self, reader: Reader, recorder: Records) -> None:
        self._reader, self._recorder = reader, recorder
        self._found: OrderedDict[Shape, Recorded | None] = OrderedDict()

    def read(
        self, x: Tensor, positions: Tensor, memory: LayerRows, visual: Sequence[int], schedule: Schedule
    ) -> Tensor:
        """Do what Reader.read does for one empty text x [1, tokens, width]."""
        count = x.shape[1]
        padded = -(-count // STEP) * STEP
        shape = (padded, positions.shape[1:], tuple(visual), schedule)
        seen = shape in self._found
        recorded = self._found.setdefault(shape, None)
        self._found.move_to_end(shape)
        if len(self._found) > KEPT:
            self._found.popitem(last=False)
        if not seen:
            return self._reader.read(x, positions, memory, visual, schedule)
        if recorded is None:
            recorded = self._found[shape] = Recorded(self._reader, self._recorder, x, positions, shape)
        return recorded.read(x, positions, memory)


class Inputs(NamedTuple):
    """The inputs of a recording, at one address: embeddings, positions, and the number of pads."""

    x: Tensor
    positions: Tensor
    pads: Tensor


class Recorded:
    """The recorded pass over prompts of one shape, with buffers of its own for their keys and values."""

    def __init__(self, reader: Reader, recorder: Records, x: Tensor, positions: Tensor, shape: Shape) -> None:
        padded, _, visual, self._schedule = shape
        self._reader, self._padded = reader, padded
        self._memory = reader.memory(padded)
        self._memory.hold(padded)
        self._words = words_among(padded, visual, x.device) if self._schedule.decisions else None
        self._inputs = Inputs(
            x.new_zeros(1, padded, x.shape[2]),
            positions.new_zeros(padded, *positions.shape[1:]),
            positions.new_zeros(()),
        )
        self._states = x.new_zeros(1, padded, x.shape[2])
        self._give(x, positions)
        self._replay: Replay = recorder.record(self._pass)

    def read(self, x: Tensor, positions: Tensor, memory: LayerRows) -> Tensor:
        """Read one prompt into an empty `memory`; return its states [1, tokens, width]."""
        count = x.shape[1]
        self._give(x, positions)
        self._replay()
        memory.hold(count)
        own, into = self._memory, memory.buffers
        for new, kept in ((own.buffers.keys, into.keys), (own.buffers.values, into.values)):
            kept[..., :count, :] = new[..., :count, :]
        memory.lengths = [length - (self._padded - count) for length in own.lengths]
        return self._states[:, :count].clone()

    def _give(self, x: Tensor, positions: Tensor) -> None:
        count = x.shape[1]
        self._inputs.x[:, :count] = x
        self._inputs.positions[:count] = positions
        self._inputs.pads.fill_(self._padded - count)

    def _pass(self) -> None:
        inputs, memory = self._inputs, self._memory
        memory.lengths = [0] * len(memory.lengths)
        self._states.copy_(
            self._reader.routed(inputs.x, inputs.positions, memory, self._words, self._schedule, inputs.pads)
        )
