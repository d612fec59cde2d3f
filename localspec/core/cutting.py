"""Which layers a draft can do without, and what a draft is worth: the arithmetic of choosing a cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.floating]  # [layers + 1, tokens, width]: what enters each layer and leaves the last
Distances = NDArray[np.float64]  # [layers + 1, layers + 1]


class Worth(NamedTuple):
    """What a draft promises at its best depth: tokens a round, and times the speed of plain decoding."""

    depth: int
    tokens: float
    speed_up: float


def angles(states: States) -> Distances:
    """Return the mean angle between the states that enter any two layers, as a share of a half turn.

    d(x_i, x_j) = arccos(cos(x_i, x_j)) / pi (Gromov et al. 2024, The Unreasonable Ineffectiveness of the
    Deeper Layers, eq. 6), the mean over all tokens instead of the last one of each text.
    """
    unit = states / np.maximum(np.linalg.norm(states, axis=-1, keepdims=True), 1e-12)
    cosines = np.einsum("itw,jtw->ijt", unit, unit)
    return np.asarray(np.arccos(np.clip(cosines, -1.0, 1.0)).mean(axis=-1) / np.pi, np.float64)


def influences(states: States) -> NDArray[np.float64]:
    """Return how much each layer turns what goes through it, [layers].

    Block influence: 1 - E[cos(x_i, x_i+1)] (Men et al. 2024, ShortGPT, eq. 1).
    """
    before, after = states[:-1], states[1:]
    lengths = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    cosines = (before * after).sum(axis=-1) / np.maximum(lengths, 1e-12)
    return np.asarray(1.0 - cosines.mean(axis=-1), np.float64)


def candidates(distances: Distances, influence: Sequence[float], count: int) -> list[frozenset[int]]:
    """Return sets of `count` layers that may go: the block of least angle, and the least influential ones.

    The first and the last layer are kept. Empty when there are not so many others.
    """
    layers = len(influence)
    if not 0 < count <= layers - 2:
        return []
    starts = range(1, layers - count)
    first = min(starts, key=lambda start: float(distances[start, start + count]))
    inner = sorted(range(1, layers - 1), key=lambda layer: float(influence[layer]))
    return list(dict.fromkeys([frozenset(range(first, first + count)), frozenset(inner[:count])]))


def between(whole: Sequence[float], least: Sequence[float], share: float) -> list[float]:
    """Return what passes cost where `share` of what `least` is without is gone from the `whole`.

    Layers and rows of a head cost what others of them do, so two measurements tell of all.
    """
    return [most + share * (less - most) for most, less in zip(whole, least, strict=True)]


def rounds_of(agreed: Sequence[NDArray[np.bool_]], depth: int) -> tuple[float, float]:
    """Return the tokens that a round of `depth` guesses settles, and the share of those that all stand.

    On average, on texts of the target: `agreed` tells for each token of a text whether it is the draft's
    likeliest one after the tokens before. As guesses stand only where all before them did, that is exactly
    what greedy decoding would accept.
    """
    tokens = rounds = whole = 0
    for text in agreed:
        wrong = np.append(np.flatnonzero(~text), len(text))
        at = 0
        while at < len(text):
            run = int(wrong[np.searchsorted(wrong, at)]) - at
            at += min(run, depth) + 1
            rounds += 1
            whole += run >= depth
        tokens += len(text)
    return (tokens / rounds, whole / rounds) if rounds else (1.0, 0.0)


def worth(agreed: Sequence[NDArray[np.bool_]], guess: Sequence[float], passes: Sequence[float]) -> Worth:
    """Return what a draft promises whose passes over one and over two tokens take the seconds `guess`.

    `passes` are the seconds of the target's over 1, 2, ... tokens. The speed-up is E[tokens] * passes(1)
    / (depth * guess + passes(depth + 1)) (Leviathan et al. 2023, theorem 3.8, with measured acceptance and
    costs); that of depth 0 is 1. Behind guesses that all stood a draft reads two tokens for its next one: the
    last guess, which it has not read, and the target's own.
    """
    one, two = guess
    best = Worth(0, 1.0, 1.0)
    for depth in range(1, len(passes)):
        tokens, whole = rounds_of(agreed, depth)
        gain = tokens * passes[0] / (depth * one + whole * (two - one) + passes[depth])
        if gain > best.speed_up:
            best = Worth(depth, tokens, gain)
    return best
