"""Estimate the speed-up of a draft from its agreement with the target and the costs of passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Speedup(NamedTuple):
    """An estimate at the best draft length: tokens per step, and the speed relative to plain decoding."""

    draft_length: int
    tokens_per_step: float
    speedup: float


def interpolated_costs(full: Sequence[float], reduced: Sequence[float], share: float) -> list[float]:
    """Return the cost of passes when `share` of the parts that `reduced` lacks are removed from `full`.

    All layers, and all rows of a head, cost about the same, so two measurements suffice.
    """
    return [of_full + share * (less - of_full) for of_full, less in zip(full, reduced, strict=True)]


def expected_rate(pass_seconds: Sequence[float], guess_seconds: float, acceptance: float) -> float:
    """Return tokens per second at the best draft length, if each guess is accepted with that probability.

    `pass_seconds` are those of passes over 1, 2, ... tokens. At draft length d a step emits
    (1 - a^(d + 1)) / (1 - a) tokens in d guesses and one pass over d + 1 tokens (Leviathan et al. 2023,
    equation 1 and theorem 3.8).
    """
    return max(
        sum(acceptance**at for at in range(width)) / ((width - 1) * guess_seconds + seconds)
        for width, seconds in enumerate(pass_seconds, 1)
    )


def chain_speedup(rates: Sequence[float], pass_seconds: Sequence[float], guess_seconds: float) -> Speedup:
    """Return the estimate for guesses in a row of which the first, second ... are right at these `rates`.

    A rate is the share of right guesses where all before it are. At draft length 0 the speed is that of plain
    decoding.
    """
    best, right, tokens = Speedup(0, 1.0, 1.0), 1.0, 1.0
    for length, (rate, seconds) in enumerate(zip(rates, pass_seconds[1:], strict=False), 1):
        right *= rate
        tokens += right
        speedup = tokens * pass_seconds[0] / (seconds + length * guess_seconds)
        best = max(best, Speedup(length, tokens, speedup), key=lambda found: found.speedup)
    return best


def tokens_per_step(agreement: Sequence[NDArray[np.bool_]], draft_length: int) -> tuple[float, float]:
    """Return the mean tokens per step at a draft length, and the share of fully accepted drafts.

    `agreement` tells for each token of the target's texts whether it is the draft's likeliest one. A guess is
    accepted only if all before it are, so this is exactly what greedy decoding accepts.
    """
    tokens = steps = full = 0
    for text in agreement:
        wrong = np.append(np.flatnonzero(~text), len(text))
        at = 0
        while at < len(text):
            run = int(wrong[np.searchsorted(wrong, at)]) - at
            at += min(run, draft_length) + 1
            steps += 1
            full += run >= draft_length
        tokens += len(text)
    return (tokens / steps, full / steps) if steps else (1.0, 0.0)


def best_speedup(
    agreement: Sequence[NDArray[np.bool_]], draft_seconds: Sequence[float], target_seconds: Sequence[float]
) -> Speedup:
    """Return the estimated speed-up at the best draft length.

    `draft_seconds` are those of the draft's passes over one and two tokens, `target_seconds` those of the
    target's over 1, 2, ... tokens. The speed-up at draft length d is E[tokens] * target(1) / (d * draft(1) +
    target(d + 1)) (Leviathan et al. 2023, theorem 3.8, with measured acceptance and costs); that of 0 is 1.
    After a fully accepted draft the next one begins with a pass over two tokens: the last guess, which the
    draft has not read, and the target's own token.
    """
    one, two = draft_seconds
    best = Speedup(0, 1.0, 1.0)
    for length in range(1, len(target_seconds)):
        tokens, full = tokens_per_step(agreement, length)
        speedup = tokens * target_seconds[0] / (length * one + full * (two - one) + target_seconds[length])
        if speedup > best.speedup:
            best = Speedup(length, tokens, speedup)
    return best
