"""Logits that stay on a card: main memory gets the facts of greedy choices, and whole rows on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from localspec.core.types import DeviceRow, Logits

FACTS = 3  # of a row: its best token, that one's logit, and the sum of exp(logit - highest)


def facts_of(logits: Any) -> Any:
    """Return the facts [rows, FACTS] of logits [rows, vocab] on their device; float32 holds any token id."""
    import torch

    highest, best = logits.max(-1)
    weight = (logits - highest[:, None]).exp().sum(-1)
    return torch.stack([best.float(), highest, weight], -1)


class InMainMemory(NDArrayOperatorsMixin):
    """Acts as the numpy array that `_array` fetches."""

    _array: Callable[[], NDArray[np.float32]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found = self._array()
        return found.astype(dtype) if dtype is not None else found.copy() if copy else found

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute with the fetched numbers."""
        plain = [each._array() if isinstance(each, InMainMemory) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array(), name)


class OneRow(InMainMemory, DeviceRow):
    """The logits [vocab] at a position, of which `facts` [FACTS] are known."""

    def __init__(
        self, facts: NDArray[np.float32], size: int, fetch: Callable[[], NDArray[np.float32]]
    ) -> None:
        self.best, self.highest, self.weight = int(facts[0]), np.float32(facts[1]), float(facts[2])
        self._size, self._array = size, fetch

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | np.integer) and key == self.best:
            return self.highest
        if isinstance(key, slice) and key.indices(self._size) == (0, self._size, 1):
            return self
        return self._array()[key]

    def argmax(self) -> int:
        """Return the token of the highest logit, the first of several."""
        return self.best


class LateRows(InMainMemory):
    """The logits [rows, vocab] of a pass, which come to main memory when they are first asked for."""

    dtype = np.dtype(np.float32)

    def __init__(self, shape: tuple[int, int], fetch: Callable[[], Logits]) -> None:
        self.shape, self._array = shape, fetch

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._array())

    def __getitem__(self, key: Any) -> Any:
        return self._array()[key]


class DeviceRows(InMainMemory):
    """The logits [rows, vocab] of a pass, of which `facts` [rows, FACTS] are known."""

    dtype = np.dtype(np.float32)

    def __init__(self, facts: NDArray[np.float32], size: int, fetch: Callable[[], Logits]) -> None:
        self._facts, self._size, self._array = facts, size, fetch
        self.shape = (len(facts), size)

    def __len__(self) -> int:
        return len(self._facts)

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | np.integer):
            return OneRow(self._facts[key], self._size, lambda: self._array()[key])
        if isinstance(key, slice):
            return DeviceRows(self._facts[key], self._size, lambda: self._array()[key])
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], int):
            return self[key[0]][key[1]]
        return self._array()[key]

    def argmax(self, axis: int | None = None) -> Any:
        """Return the tokens of the highest logits."""
        return self._facts[:, 0].astype(np.int64) if axis in (1, -1) else self._array().argmax(axis)


class ToNumpy:
    """Copies logits from a device to main memory, through one pinned buffer."""

    def __init__(self) -> None:
        self._pinned: Any = None

    def __call__(self, logits: Any) -> Logits:
        """Return logits as float32 in main memory, a view if they are that already."""
        if logits.device.type != "cuda":
            rows: Logits = logits.cpu().float().numpy()
            return rows
        import torch

        count = logits.shape[0]
        if self._pinned is None or len(self._pinned) < count:
            self._pinned = torch.empty(logits.shape, dtype=torch.float32, pin_memory=True)
        self._pinned[:count].copy_(logits, non_blocking=True)
        torch.cuda.current_stream(logits.device).synchronize()
        pinned: Logits = self._pinned[:count].numpy()
        return pinned


class Fetched:
    """Rows of a pass that come to main memory when they are first asked for, until the next pass."""

    def __init__(self, numpy: Callable[[Any], Logits], logits: Any, current: Callable[[], bool]) -> None:
        self._numpy, self._logits, self._current = numpy, logits, current
        self._rows: Logits | None = None

    def __call__(self) -> Logits:
        """Return the rows [rows, vocab]."""
        if self._rows is None:
            import torch

            assert self._current(), "rows are valid until the next pass"
            with torch.inference_mode():
                self._rows = self._numpy(self._logits)
        return self._rows
