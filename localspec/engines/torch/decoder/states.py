"""Hidden states of one text: they stay where they were computed until they are asked for."""

from __future__ import annotations

from localspec.core.sessions import FIRST_CAPACITY, HiddenStateBuffer
from localspec.core.types import Logits
from localspec.decoder.weights import Tensor


class DeviceStates:
    """Hidden states on a device, and a copy in the main memory of those that were asked for.

    A pass so waits for no transfer: a text that is not drafted for never makes one.
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
        """Return a view [length, width] of the states of the first `length` tokens, in the main memory."""
        if self._copied < length:
            assert self._kept is not None
            new: Logits = self._kept[self._copied : length].float().cpu().numpy()
            self._copy.put(self._copied, new)
            self._copied = length
        return self._copy.first(length)
