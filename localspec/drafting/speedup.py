"""Which layers a draft can do without, and what a draft is worth: the arithmetic of choosing a cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Worth(NamedTuple):
    """What a draft promises at its best depth: tokens a round, and times the speed of plain decoding."""

    depth: int
    tokens: float
    speed_up: float


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
    tokens = steps = whole = 0
    for text in agreed:
        wrong = np.append(np.flatnonzero(~text), len(text))
        at = 0
        while at < len(text):
            run = int(wrong[np.searchsorted(wrong, at)]) - at
            at += min(run, depth) + 1
            steps += 1
            whole += run >= depth
        tokens += len(text)
    return (tokens / steps, whole / steps) if steps else (1.0, 0.0)


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
