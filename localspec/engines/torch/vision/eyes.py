"""Eyes whose pictures all have one size: a CUDA card records their pass once and replays it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from localspec.decoder.passes import Replay
from localspec.decoder.weights import Tensor


class Records(Protocol):
    """Whatever records passes, as a Recorder does."""

    def record(self, run: Replay) -> Replay:
        """Return what replays `run`, whose tensors stay where they are."""


class RecordedEyes:
    """Looks at one picture at a time, in a replay of the first pass."""

    def __init__(self, see: Callable[[Tensor], Tensor], pixels: Tensor, recorder: Records) -> None:
        """`see` maps pixels of the size of `pixels` to embeddings [tokens, width]."""
        self._see, self._pixels = see, pixels.clone()
        self._states = see(self._pixels).clone()
        self._replay = recorder.record(self._pass)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return the embeddings [tokens, width] of a picture, which later ones do not change."""
        self._pixels.copy_(pixels)
        self._replay()
        return self._states.clone()

    def _pass(self) -> None:
        self._states.copy_(self._see(self._pixels))
