"""Speed-ups with confidence intervals, from runs in turns on a machine whose speed drifts."""

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
    """A speed-up, with its 95 % confidence interval."""

    value: float
    low: float
    high: float
    prompts: int


def speedup(pairs: Sequence[Sequence[tuple[float, float]]]) -> Ratio:
    """Return the geometric mean over prompts of the median ratio of seconds per token.

    `pairs` has the repetitions of each prompt as (plain, backend), measured one after the other, so that both
    saw the same machine. The interval is a percentile bootstrap (Efron 1979), which draws prompts with
    replacement, and repetitions within each; for one prompt it draws only repetitions.
    """
    logs = [np.log([plain / backend for plain, backend in prompt]) for prompt in pairs if prompt]
    if not logs:
        raise ValueError("no pairs")
    generator = np.random.default_rng(SEED)
    centre = float(np.mean([np.median(prompt) for prompt in logs]))
    low, high = np.quantile(_bootstrap_means(logs, generator), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    factor = _small_sample_factor(len(logs) if len(logs) > 1 else len(logs[0]))
    low, high = centre - (centre - low) * factor, centre + (high - centre) * factor
    return Ratio(float(np.exp(centre)), float(np.exp(low)), float(np.exp(high)), len(logs))


def median_and_range(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the minimum and the maximum."""
    return float(np.median(values)), float(min(values)), float(max(values))


def _bootstrap_means(logs: list[NDArray[np.float64]], generator: np.random.Generator) -> NDArray[np.float64]:
    """Return means over drawn prompts of medians over their drawn repetitions [DRAWS]."""
    counts = np.array([len(prompt) for prompt in logs])
    values = np.full((len(logs), counts.max()), np.nan)
    for at, prompt in enumerate(logs):
        values[at, : len(prompt)] = prompt
    prompts = generator.integers(0, len(logs), (DRAWS, len(logs)))
    share = generator.random((DRAWS, len(logs), counts.max()))
    repeats = (share * counts[prompts][..., None]).astype(int)
    drawn = values[prompts[..., None], repeats]
    drawn[np.arange(counts.max()) >= counts[prompts][..., None]] = np.nan
    medians = np.median(drawn, axis=2) if (counts == counts[0]).all() else np.nanmedian(drawn, axis=2)
    means: NDArray[np.float64] = medians.mean(axis=1)
    return means


def _small_sample_factor(count: int) -> float:
    """Return the factor that corrects a bootstrap interval for a small `count` of samples.

    The bootstrap underestimates the spread by sqrt((n - 1) / n) and ignores Student's t, whose quantile is
    expanded to second order (Cornish-Fisher; Abramowitz and Stegun 26.7.5).
    """
    z, freedom = 1.96, max(count - 1, 1)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return float((z + first + second) / z * np.sqrt((freedom + 1) / freedom))
