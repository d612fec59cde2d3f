"""Texts in a decoder of our own, over buffers that stay when a text ends."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from localspec.core.contracts import HiddenStates, LayerStates, TreeSession
from localspec.core.sessions import Tree
from localspec.core.types import Branch, Logits, Tokens
from localspec.decoder.own import CARD_CHUNK, OwnDecoder, RowReader
from localspec.decoder.passes import WIDEST, Found
from localspec.engines.torch.decoder.states import DeviceStates
from localspec.errors import ContextFull
from localspec.formats.huggingface.torch_devices import memory_errors, use_threads


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
        self._states = DeviceStates()

    def hidden(self) -> Logits:
        """Return a view on the hidden states [tokens, width] of the text."""
        return self._states.first(self._length)

    def _note(self, found: Found) -> None:
        self._states.put(self._length, found.states)


class OwnTappedSession(OwnSession, LayerStates):
    """A text with the hidden states after some layers, in float16."""

    def __init__(self, own: OwnDecoder) -> None:
        super().__init__(own)
        self._states = DeviceStates(halved=True)

    def states(self) -> Logits:
        """Return a view on the hidden states [tokens, layers * width] of the text."""
        return self._states.first(self._length)

    def _note(self, found: Found) -> None:
        assert found.tapped is not None
        self._states.put(self._length, found.tapped)
