"""Several texts in one pass of a decoder of our own, in few shapes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from localspec.decoder.forward import Places
from localspec.decoder.own import OwnDecoder
from localspec.decoder.passes import WIDEST, WIDTHS, Buffers, Replay, bucket
from localspec.engines.torch.model import TorchModel
from localspec.engines.torch.shared import TorchSharedPasses


class Shape(NamedTuple):
    """The texts of a pass, the tokens of each, and the slots that they attend to."""

    texts: int
    width: int
    end: int


class Ready(NamedTuple):
    """A pass of one shape, and its inputs: ids, positions and slots [texts, width], and rows [texts]."""

    inputs: tuple[Any, Any, Any, Any]
    run: Replay


class OwnSharedPasses(TorchSharedPasses):
    """Texts in the rows of common buffers, of which the last slot of each takes the keys of padding.

    A pass over up to WIDEST tokens of each text is padded to one of WIDTHS, its texts to a power of two, and
    recorded where a card runs it, like a pass of one text.
    """

    def __init__(self, engine: TorchModel, own: OwnDecoder, texts: int) -> None:
        super().__init__(engine, texts)
        self._own = own
        self._buffers = Buffers(own.decoder, own.context + 1, self._count)
        self._ready: dict[Shape, Ready] = {}
        self._logits: Any = None  # [tokens, vocab] of the largest shape so far, at one address

    def _run(self, ids: Any, positions: Any, rows: int) -> Any:
        """Return the logits [texts, rows, vocab] of the last tokens of each text."""
        texts, width = ids.shape
        if self._buffers.hold(self._places.end + 1, self._buffers.room):
            self._ready.clear()
        if width > WIDEST:
            return self._long(ids, positions, rows)
        end = min(bucket(self._places.end, self._own.decoder.first_end), self._buffers.room)
        wide = next(each for each in WIDTHS if each >= width)
        shape = Shape(1 << (texts - 1).bit_length(), wide, end)
        ready = self._ready.get(shape)
        inputs = ready.inputs if ready else self._inputs(shape)
        for into, given, padding in zip(inputs, self._given(ids, positions), (0, 0, -1, 0), strict=True):
            into.fill_(padding % self._buffers.room)
            part = into[:texts, wide - width :] if given.ndim > 1 else into[:texts]
            part.copy_(given)
        if ready is None:
            run = partial(self._pass_of, shape, inputs)
            recorder = self._own.recorder
            ready = self._ready[shape] = Ready(inputs, recorder.record(run) if recorder else run)
        ready.run()
        return self._logits[: shape.texts * wide].view(shape.texts, wide, -1)[:texts, wide - rows :]

    def _given(self, ids: Any, positions: Any) -> tuple[Any, Any, Any, Any]:
        """Return the inputs of a pass as they are, the last slot by its number."""
        return ids, positions, self._places.slots % self._buffers.room, self._places.rows

    def _inputs(self, shape: Shape) -> tuple[Any, Any, Any, Any]:
        """Return the inputs of a shape, and make room for its logits."""
        torch, place = self._torch, self._own.place
        needed = shape.texts * shape.width
        if self._logits is None or len(self._logits) < needed:
            self._logits = torch.zeros((needed, self._own.vocab), device=place)
            self._ready.clear()  # recorded over the smaller ones
        ids, positions, slots = torch.zeros((3, shape.texts, shape.width), dtype=torch.long, device=place)
        return ids, positions, slots, torch.zeros(shape.texts, dtype=torch.long, device=place)

    def _pass_of(self, shape: Shape, inputs: tuple[Any, Any, Any, Any]) -> None:
        """Run a pass over the inputs, which alone change between its repetitions."""
        logits = self._own.decoder.logits(self._states(*inputs, end=shape.end))
        self._logits[: len(logits)] = logits

    def _states(self, ids: Any, positions: Any, slots: Any, texts: Any, *, end: int) -> Any:
        """Return the last hidden states [texts * width, width of the model]."""
        buffers = self._buffers
        mask = self._torch.arange(end, device=self._own.place) <= positions[..., None]
        few = positions.shape[1] <= WIDEST
        ends = positions.amax(1) + 1 if few else None
        places = Places(positions.flatten(), slots, end, mask, texts, ends)
        return self._own.decoder.states(ids.flatten(), places, buffers.keys, buffers.values)[0]

    def _long(self, ids: Any, positions: Any, rows: int) -> Any:
        """Return the logits [texts, rows, vocab] of a pass of its own shape."""
        (texts, width), end, buffers = ids.shape, self._places.end, self._buffers
        if texts == 1:
            row = int(self._places.rows[0])
            kept = (part[:, row] for part in (buffers.keys, buffers.values))
            found = self._own.decoder.states(ids[0], Places(positions[0], positions[0], end), *kept)[0]
        else:
            found = self._states(*self._given(ids, positions), end=end)
        if not rows:
            return found.new_zeros(texts, 0, self._own.vocab)
        last = found.view(texts, width, -1)[:, width - rows :]
        return self._own.decoder.logits(last.flatten(0, 1)).view(texts, rows, -1)
