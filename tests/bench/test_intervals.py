"""Speed-ups with intervals: correct on noisy pairs, with the right coverage."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.bench.intervals import median_and_range, speedup


def runs(
    numbers: np.random.Generator, ratio: float, prompts: int, repeat: int, noise: float
) -> list[list[tuple[float, float]]]:
    """Measure a backend on a machine whose speed drifts, in the same way for both runs of a pair."""
    speed, found = 1.0, []
    for _ in range(prompts):
        pairs = []
        for _ in range(repeat):
            speed *= float(np.exp(numbers.normal(0, 0.3)))
            plain, other = (float(np.exp(numbers.normal(0, noise))) for _ in range(2))
            pairs.append((speed * plain, speed * other / ratio))
        found.append(pairs)
    return found


@pytest.mark.parametrize(("prompts", "repeat"), [(12, 3), (12, 1), (4, 3), (24, 2)])
def test_the_interval_of_equal_speeds_contains_one_in_95_percent(prompts: int, repeat: int) -> None:
    numbers = np.random.default_rng(1)
    found = [speedup(runs(numbers, 1.0, prompts, repeat, 0.1)) for _ in range(400)]
    assert sum(ratio.low <= 1 <= ratio.high for ratio in found) >= 380


@pytest.mark.parametrize("ratio", [0.8, 1.5, 3.0])
def test_a_ratio_is_found_despite_drift(ratio: float) -> None:
    numbers = np.random.default_rng(2)
    found = [speedup(runs(numbers, ratio, 12, 3, 0.1)) for _ in range(60)]
    assert sum(one.low <= ratio <= one.high for one in found) >= 55
    assert float(np.mean([one.value for one in found])) == pytest.approx(ratio, rel=0.02)
    assert all(one.high / one.low < 1.3 for one in found)


def test_it_is_the_geometric_mean_of_medians() -> None:
    found = speedup([[(4.0, 1.0), (4.0, 1.0), (100.0, 1.0)], [(1.0, 1.0)]])
    assert found.value == pytest.approx(2.0)
    assert found.prompts == 2
    assert found.low <= found.value <= found.high


def test_the_same_runs_give_the_same_interval() -> None:
    pairs = runs(np.random.default_rng(3), 1.2, 6, 3, 0.1)
    assert speedup(pairs) == speedup(pairs)


def test_without_pairs_there_is_no_ratio() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        speedup([[]])


def test_a_spread_is_median_and_ends() -> None:
    assert median_and_range([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
