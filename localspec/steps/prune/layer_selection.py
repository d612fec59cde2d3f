"""Rank the layers of a draft by how little they change the hidden states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LayerStates = NDArray[np.floating]  # [layers + 1, tokens, width]: each layer's input, the last one's output
Distances = NDArray[np.float64]  # [layers + 1, layers + 1]


def angular_distances(states: LayerStates) -> Distances:
    """Return the mean angle between the inputs of any two layers, as a share of a half turn.

    d(x_i, x_j) = arccos(cos(x_i, x_j)) / pi (Gromov et al. 2024, The Unreasonable Ineffectiveness of the
    Deeper Layers, eq. 6), averaged over all tokens instead of the last one of each text.
    """
    unit = states / np.maximum(np.linalg.norm(states, axis=-1, keepdims=True), 1e-12)
    cosines = np.einsum("itw,jtw->ijt", unit, unit)
    return np.asarray(np.arccos(np.clip(cosines, -1.0, 1.0)).mean(axis=-1) / np.pi, np.float64)


def block_influence(states: LayerStates) -> NDArray[np.float64]:
    """Return how much each layer changes its input, [layers].

    Block influence: 1 - E[cos(x_i, x_i+1)] (Men et al. 2024, ShortGPT, eq. 1).
    """
    before, after = states[:-1], states[1:]
    lengths = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    cosines = (before * after).sum(axis=-1) / np.maximum(lengths, 1e-12)
    return np.asarray(1.0 - cosines.mean(axis=-1), np.float64)


def removal_candidates(distances: Distances, influence: Sequence[float], count: int) -> list[frozenset[int]]:
    """Return sets of `count` layers to remove: the block of least angle, and the least influential layers.

    The first and the last layer are kept. Empty if there are not so many others.
    """
    layers = len(influence)
    if not 0 < count <= layers - 2:
        return []
    starts = range(1, layers - count)
    first = min(starts, key=lambda start: float(distances[start, start + count]))
    inner = sorted(range(1, layers - 1), key=lambda layer: float(influence[layer]))
    return list(dict.fromkeys([frozenset(range(first, first + count)), frozenset(inner[:count])]))
