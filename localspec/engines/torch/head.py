"""A head in torch: the session that its target's hidden states lead."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, cast

import numpy as np

from localspec.core.contracts import HeadSession
from localspec.core.types import Logits, Tokens
from localspec.decoder.passes import Recorder
from localspec.decoder.rows import DeviceRows, Fetched, ToNumpy
from localspec.engines.torch.decoder.states import OnDevice
from localspec.engines.torch.head_layer import layer_of
from localspec.engines.torch.head_passes import HeadPasses
from localspec.engines.torch.model import TorchModel
from localspec.errors import ContextFull
from localspec.formats.heads import layout
from localspec.formats.heads.torch_head import TorchHead


class HeadModel:
    """A head's weights on the device of its target, whose embedding it reads unless it has its own."""

    def __init__(self, folder: Path, target: TorchModel) -> None:
        import torch

        found = layout.read(folder)
        self.tokens = found.tokens

        def moved(values: Any) -> Any:
            return torch.from_numpy(values).to(target.place, target.dtype)

        embedding = found.embedding
        table = target.table if embedding is None else moved(embedding)
        weights = {name: moved(values) for name, values in found.tensors.items()}
        self.torch = TorchHead(found.shape, weights, table)
        self._layer = layer_of(self.torch)
        self.place, self.dtype = target.place, target.dtype
        self._recorder = Recorder(self.place) if self.place.type == "cuda" else None
        self._idle: list[HeadPasses] = []

    def passes(self) -> HeadPasses:
        """Return passes for a text, those of one that ended if there are any, with their recordings."""
        return self._idle.pop() if self._idle else HeadPasses(self._layer, self.dtype, self._recorder)

    def give_back(self, passes: HeadPasses) -> None:
        """Keep the passes of a text that ended for the next one."""
        if not self._idle:
            self._idle.append(passes)


class TorchHeadSession(HeadSession):
    """One text that a head reads; a rewind only changes a number.

    States that the target left on the device stay there, and so do the head's own. A card keeps the logits
    too, until more of them is asked for than greedy choices need.
    """

    def __init__(self, head: HeadModel) -> None:
        import torch

        self.tokens = head.tokens
        self._place, self._kind = head.place, head.dtype
        self._head, self._numpy, self._few = head.torch, ToNumpy(), ToNumpy()
        with torch.inference_mode():
            self._passes = head.passes()
        weakref.finalize(self, head.give_back, self._passes).atexit = False
        self._length = 0
        self._led: Any = None
        self._own: Any = None

    def fuse(self, states: Logits) -> Logits:
        """Return what stands for the target's states."""
        import torch

        with torch.inference_mode():
            return cast(Logits, OnDevice(self._head.fuse(self._torch(states))))

    def lead(self, states: Logits) -> None:
        """Let the next tokens be read with `states` [tokens, width]."""
        self._led = self._torch(states)

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, tokens of the head]."""
        import torch

        at, total = self._length, self._length + len(tokens)
        if total > self._head.shape.context:
            raise ContextFull(total, self._head.shape.context)
        if not tokens:
            return np.empty((0, len(self.tokens)), np.float32)
        with torch.inference_mode():
            found = self._passes.read(tokens, self._led, at, rows)
            self._own, self._length = found.own, total
            if found.facts is None:
                return self._numpy(found.logits)
            turn = self._passes.turn
            fetch = Fetched(self._numpy, found.logits, lambda: self._passes.turn == turn)
            return cast(Logits, DeviceRows(self._few(found.facts).copy(), found.logits.shape[1], fetch))

    def own(self) -> Logits:
        """Return the head's own states of the last pass."""
        return cast(Logits, OnDevice(self._own))

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        self._length = min(length, self._length)
        return self._length

    def _torch(self, states: Logits) -> Any:
        import torch

        if isinstance(states, OnDevice):
            return states.tensor.to(self._place, self._kind)
        return torch.from_numpy(np.ascontiguousarray(states)).to(self._place, self._kind)
