"""Texts in a decoder of our own, over buffers that stay when a text ends."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from localspec.core.contracts import HiddenStates, LayerStates, TreeSession
from localspec.core.sessions import HiddenStateBuffer, Tree
from localspec.core.types import Branch, Logits, Tokens
from localspec.engines.torch.decoder.forward import Decoder
from localspec.engines.torch.decoder.passes import WIDEST, Found, Passes, Recorder
from localspec.engines.torch.decoder.rows import DeviceRows, Fetched, facts_of
from localspec.engines.torch.decoder.weights import Tensor
from localspec.engines.torch.model import use_threads
from localspec.engines.torch.sessions import ToNumpy
from localspec.errors import BadValue, ContextFull
from localspec.formats.huggingface.torch_devices import memory_errors

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


class OwnSession(TreeSession):
    """A text whose keys are all kept, so that a rewind only changes a number; branches are read beside it."""

    def __init__(self, own: OwnDecoder) -> None:
        import torch

        self._torch, self._own, self._rows = torch, own, RowReader(own)
        if own.place.type == "cuda":
            self.chunk = CARD_CHUNK
        with torch.inference_mode():
            self._passes = own.passes()
        weakref.finalize(self, own.give_back, self._passes).atexit = False
        self._length = 0

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        return self.forward_tree(tokens, rows, [])

    def forward_tree(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        """Append `tokens` and read `branches` beside them; return logits [rows + branches, vocab]."""
        tree, own = Tree.of(self._length, tokens, rows, branches), self._own
        if (total := self._length + tree.size) > own.context:
            raise ContextFull(total, own.context)
        wanted = rows + len(branches)
        if not tree.size:
            return np.empty((0, own.vocab), np.float32)
        if own.threads:
            use_threads(own.threads)
        read = [*tokens, *(branch.token for branch in branches)]
        with self._torch.inference_mode(), memory_errors(own.place, f"a text of {total} tokens"):
            read_by = self._passes.short if tree.size <= WIDEST else self._passes.long
            found = read_by(read, tree, self._length)
            self._note(found)
            rows_found = self._rows(
                self._passes, lambda: found.states[tree.size - wanted :], tree.size, wanted
            )
        self._length += len(tokens)
        return rows_found

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        self._length = min(length, self._length)
        return self._length

    def _note(self, found: Found) -> None:
        """Keep what a pass found beside its logits."""


class OwnHiddenSession(OwnSession, HiddenStates):
    """A text whose last hidden states are kept with its keys."""

    def __init__(self, own: OwnDecoder) -> None:
        super().__init__(own)
        self._states = HiddenStateBuffer()

    def hidden(self) -> Logits:
        """Return a view on the hidden states [tokens, width] of the text."""
        return self._states.first(self._length)

    def _note(self, found: Found) -> None:
        self._states.put(self._length, in_main_memory(found.states))


class OwnTappedSession(OwnSession, LayerStates):
    """A text with the hidden states after some layers, in float16."""

    def __init__(self, own: OwnDecoder) -> None:
        super().__init__(own)
        self._states = HiddenStateBuffer(halved=True)

    def states(self) -> Logits:
        """Return a view on the hidden states [tokens, layers * width] of the text."""
        return self._states.first(self._length)

    def _note(self, found: Found) -> None:
        self._states.put(self._length, in_main_memory(found.tapped))


def in_main_memory(values: Any) -> Logits:
    """Return numbers of a device in float32."""
    found: Logits = values.float().cpu().numpy()
    return found
