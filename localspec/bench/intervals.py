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
    centre = float(np.mean([np.median(prompt) for prompt in logs]))
    low, high = np.quantile(_drawn(logs, numbers), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    wider = _small_sample(len(logs) if len(logs) > 1 else len(logs[0]))
    low, high = centre - (centre - low) * wider, centre + (high - centre) * wider
    return Ratio(float(np.exp(centre)), float(np.exp(low)), float(np.exp(high)), len(logs))


def median_and_range(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the least and the largest."""
    return float(np.median(values)), float(min(values)), float(max(values))


def _drawn(logs: list[NDArray[np.float64]], numbers: np.random.Generator) -> NDArray[np.float64]:
    """Return the mean of medians [DRAWS] of prompts, and repetitions within them, drawn with replacement."""
    counts = np.array([len(prompt) for prompt in logs])
    values = np.full((len(logs), counts.max()), np.nan)
    for at, prompt in enumerate(logs):
        values[at, : len(prompt)] = prompt
    prompts = numbers.integers(0, len(logs), (DRAWS, len(logs)))
    share = numbers.random((DRAWS, len(logs), counts.max()))
    repeats = (share * counts[prompts][..., None]).astype(int)
    drawn = values[prompts[..., None], repeats]
    drawn[np.arange(counts.max()) >= counts[prompts][..., None]] = np.nan
    medians = np.median(drawn, axis=2) if (counts == counts[0]).all() else np.nanmedian(drawn, axis=2)
    means: NDArray[np.float64] = medians.mean(axis=1)
    return means


def _small_sample(count: int) -> float:
    """Return how many times wider an interval of `count` samples is than their bootstrap's.

    That knows only the samples' own spread, sqrt((n - 1) / n) of the true one, and no Student's t, whose
    quantile is expanded to second order (Cornish-Fisher; Abramowitz and Stegun 26.7.5).
    """
    z, freedom = 1.96, max(count - 1, 1)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return float((z + first + second) / z * np.sqrt((freedom + 1) / freedom))
