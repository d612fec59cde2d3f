"""Ratios of speeds with intervals, from runs that were taken by turns on a machine whose speed wanders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
CONFIDENCE = 0.95
SEED = 20_240_229  # the same runs give the same interval


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast, and the interval that holds the true ratio in 19 of 20 cases."""

    value: float
    low: float
    high: float
    prompts: int


def speed_up(pairs: Sequence[Sequence[tuple[float, float]]]) -> Ratio:
    """Return the geometric mean over prompts of the median ratio of seconds a token.

    `pairs` has for each prompt the repetitions as (plain, contender), each pair measured one after the other,
    so that both saw the same machine. The interval is a bootstrap's (Efron 1979, percentiles): prompts are
    drawn with replacement, and the repetitions within each. With one prompt only its repetitions are drawn.
    """
    logs = [np.log([plain / other for plain, other in prompt]) for prompt in pairs if prompt]
    if not logs:
        raise ValueError("no pairs")
    numbers = np.random.default_rng(SEED)
    centre = _mean([float(np.median(prompt)) for prompt in logs])
    draws = [_drawn(logs, numbers) for _ in range(DRAWS)]
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    # few prompts and repetitions make a bootstrap too sure of itself: as wide again as Student's t is wider
    wider = _small_sample(sum(len(prompt) for prompt in logs))
    low, high = centre - (centre - low) * wider, centre + (high - centre) * wider
    return Ratio(float(np.exp(centre)), float(np.exp(low)), float(np.exp(high)), len(logs))


def median_and_range(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the least and the largest."""
    return float(np.median(values)), float(min(values)), float(max(values))


def _drawn(logs: list[NDArray[np.float64]], numbers: np.random.Generator) -> float:
    chosen = [logs[at] for at in numbers.integers(0, len(logs), len(logs))]
    return _mean([float(np.median(numbers.choice(prompt, len(prompt)))) for prompt in chosen])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _small_sample(count: int) -> float:
    """Return by how much Student's t at 95 % is wider than the normal law for `count` samples.

    Cornish-Fisher expansion of the quantile to second order (Abramowitz and Stegun 26.7.5).
    """
    z, freedom = 1.96, max(count - 1, 1)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return (z + first + second) / z
