"""A decoder on a device for the texts of an engine, over buffers that stay when a text ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from localspec.core.types import Logits
from localspec.decoder.forward import Decoder
from localspec.decoder.passes import WIDEST, Passes, Recorder
from localspec.decoder.rows import DeviceRows, Fetched, ToNumpy, facts_of
from localspec.decoder.weights import Tensor
from localspec.errors import BadValue

CARD_CHUNK = 2048  # tokens of a prompt that a card reads in a pass
IDLE = 2  # texts whose buffers and recordings are kept for the next ones


class OwnDecoder:
    """A decoder on a device, the layers whose states it shows, and the passes of texts that ended."""

    def __init__(self, decoder: Decoder, context: int, taps: Sequence[int] = (), threads: int = 0) -> None:
        if taps and taps[-1] > decoder.shape.layers:
            raise BadValue(f"`taps` has layer {taps[-1]}: the model has {decoder.shape.layers} layers")
        self.decoder, self.context, self.taps, self.threads = decoder, context, tuple(taps), threads
        self.place = decoder.weights.norm.device
        self.recorder = Recorder(self.place) if self.place.type == "cuda" else None
        self.keeps_rows = self.place.type == "cuda"  # on the device, until they are asked for
        self._idle: dict[int, list[Passes]] = {}

    @property
    def vocab(self) -> int:
        """The width of the logits."""
        return self.decoder.weights.head.rows

    def passes(self) -> Passes:
        """Return passes for a new text."""
        found = self.idle_passes()
        return found or Passes(self.decoder, self.context, self.recorder, self.taps, facts=self.keeps_rows)

    def idle_passes(self, kind: int = 0) -> Any:
        """Return passes of a `kind` that a text left behind, None if none did."""
        idle = self._idle.get(kind)
        return idle.pop() if idle else None

    def give_back(self, passes: Passes, kind: int = 0) -> None:
        """Keep the passes of a text that ended for another one of that kind."""
        idle = self._idle.setdefault(kind, [])
        if len(idle) < IDLE:
            idle.append(passes)


class RowReader:
    """Gives the rows of one text's passes; they are valid until its next pass."""

    def __init__(self, own: OwnDecoder) -> None:
        self._own, self._numpy, self._few = own, ToNumpy(), ToNumpy()

    def __call__(self, passes: Passes, states: Callable[[], Tensor], size: int, rows: int) -> Logits:
        """Return the last rows [rows, vocab] of a pass over `size` tokens, on a card as they are there.

        The last hidden states of those rows are asked for after a long pass alone.
        """
        turn, short, first = passes.turn, size <= WIDEST, size - rows
        if not rows:
            return np.empty((0, self._own.vocab), np.float32)
        logits = passes.logits[first:size] if short else passes.rows(states())
        if not self._own.keeps_rows:
            return self._numpy(logits)
        known = passes.facts[first:size] if short else facts_of(logits.float())
        fetch = Fetched(self._numpy, logits, lambda: not short or passes.turn == turn)
        return cast(Logits, DeviceRows(self._few(known).copy(), logits.shape[1], fetch))
