"""A head in torch: the session that its target's hidden states lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.contracts import HeadSession
from localspec.core.types import Logits, Tokens
from localspec.decoder.capacity import grown
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


class TorchHeadSession(HeadSession):
    """One text that a head reads; a rewind only changes a number."""

    def __init__(self, engine: TorchModel, head: HeadModel) -> None:
        self.tokens = head.tokens
        self._place, self._kind = engine.place, engine.dtype
        self._head = head.torch
        self._keys: Any = None
        self._values: Any = None
        self._length = 0
        self._led: Any = None
        self._own: Any = None

    def fuse(self, states: Logits) -> Logits:
        """Return what stands for the target's states."""
        import torch

        with torch.inference_mode():
            return self._numpy(self._head.fuse(self._torch(states)))

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
            ids = torch.tensor(tokens, device=self._place)
            positions = torch.arange(at, total, device=self._place)
            queries, keys, values = self._head.project(ids, self._led, positions)
            self._keep(keys, values, at, total)
            mixed = self._head.attend(queries, self._keys[:, :total], self._values[:, :total])
            self._own = self._head.finish(self._led, mixed)[len(tokens) - rows :]
            logits = self._numpy(self._head.logits(self._own))
        self._length = total
        return logits

    def own(self) -> Logits:
        """Return the head's own states of the last pass."""
        return self._numpy(self._own)

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        self._length = min(length, self._length)
        return self._length

    def _keep(self, keys: Any, values: Any, at: int, total: int) -> None:
        """Write the keys and values of the tokens from `at` on, in buffers that grow by doubling."""
        room = 0 if self._keys is None else self._keys.shape[1]
        if room < total:
            room = grown(room, total, self._head.shape.context)
            self._keys, self._values = (
                _larger(old, like, at, room) for old, like in ((self._keys, keys), (self._values, values))
            )
        self._keys[:, at:total], self._values[:, at:total] = keys, values

    def _torch(self, states: Logits) -> Any:
        import torch

        return torch.from_numpy(np.ascontiguousarray(states)).to(self._place, self._kind)

    def _numpy(self, values: Any) -> Logits:
        found: Logits = values.float().cpu().numpy()
        return found


def _larger(old: Any, like: Any, length: int, room: int) -> Any:
    """Return a buffer [heads, room, width] that starts with the first `length` tokens of `old`."""
    new = like.new_zeros((like.shape[0], room, like.shape[2]))
    if length:
        new[:, :length] = old[:, :length]
    return new
