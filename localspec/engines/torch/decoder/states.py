"""Hidden states of one text: they stay where they were computed until they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from localspec.core.sessions import FIRST_CAPACITY, HiddenStateBuffer
from localspec.core.types import Logits
from localspec.decoder.rows import InMainMemory
from localspec.decoder.weights import Tensor


class OnDevice(InMainMemory):
    """States [tokens, width] as `tensor` on a device, which act as the array that `fetch` returns."""

    def __init__(self, tensor: Tensor, fetch: Callable[[], NDArray[Any]] | None = None) -> None:
        self.tensor = tensor
        self._array = fetch or self._fetched
        self.shape = tuple(tensor.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return OnDevice(self.tensor[key], lambda: self._array()[key])
        return self._array()[key]

    def copy(self) -> OnDevice:
        """Return states of their own, on the device."""
        return OnDevice(self.tensor.clone())

    def _fetched(self) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.tensor.float().cpu().numpy()
        return found


class DeviceStates:
    """Hidden states on a device, and a copy in the main memory of those that were read there.

    A pass so waits for no transfer: neither a text that is not drafted for nor a head on the same device
    makes one.
    """

    def __init__(self, *, halved: bool = False) -> None:
        self._copy = HiddenStateBuffer(halved=halved)
        self._kept: Tensor | None = None
        self._copied = 0  # tokens whose states the copy has

    def put(self, at: int, new: Tensor) -> None:
        """Write `new` [tokens, width] from position `at` on."""
        end, kept = at + len(new), self._kept
        if kept is None or end > len(kept):
            room = max(end, 2 * (0 if kept is None else len(kept)), FIRST_CAPACITY)
            grown = new.new_empty((room, new.shape[1]))
            if kept is not None:
                grown[:at] = kept[:at]
            self._kept = kept = grown
        kept[at:end] = new
        self._copied = min(self._copied, at)

    def first(self, length: int) -> Logits:
        """Return a view [length, width] of the states of the first `length` tokens, on the device."""
        if self._kept is None:
            return self._copy.first(0)
        return cast(Logits, OnDevice(self._kept[:length], lambda: self._fetched(length)))

    def _fetched(self, length: int) -> Logits:
        if self._copied < length:
            assert self._kept is not None
            new: Logits = self._kept[self._copied : length].float().cpu().numpy()
            self._copy.put(self._copied, new)
            self._copied = length
        return self._copy.first(length)
