"""How sure PIPO's head is of a second token, in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from localspec.formats.pipo.layout import StoredPairs

State = NDArray[np.float32]  # [width]


class Confidence:
    """The small head that reads the state before a pair and that of the head after its first token."""

    def __init__(self, pairs: StoredPairs) -> None:
        parts = ("norm", "first", "second", "bias")
        self._norm, self._first, self._second, self._bias = (
            pairs.tensors[f"confidence.{part}"] for part in parts
        )
        self._epsilon = pairs.shape.head.epsilon

    def __call__(self, before: State, own: State) -> float:
        """Return the probability that the target would say what the head says."""
        both = np.concatenate([before, own])
        normed = both / np.sqrt((both**2).mean() + self._epsilon) * self._norm
        # one thread: those of a BLAS spin for a while on the cores that the next pass needs
        inner = np.einsum("ij,j->i", self._first, normed)
        inner = inner / (1 + np.exp(-inner))  # silu
        return float(1 / (1 + np.exp(-(self._second[0] * inner).sum() - self._bias[0])))
