from __future__ import annotations

import numpy as np
import pytest

from localspec.drafting.speedup import Speedup, best_speedup, interpolated_costs, tokens_per_step
from localspec.steps.prune.layer_selection import angular_distances, block_influence, removal_candidates


def turned(*degrees: float) -> np.ndarray:
    """Return hidden states of one token that each layer rotates by so many degrees."""
    angle = np.radians(np.cumsum([0.0, *degrees]))
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)[:, None, :] * 3.0


def test_distances_and_influence_of_a_rotation() -> None:
    states = turned(30, 60, 10)
    found = angular_distances(states)
    assert found[0, 1] == pytest.approx(30 / 180)
    assert found[0, 2] == pytest.approx(90 / 180)
    assert found[1, 3] == pytest.approx(70 / 180)
    assert np.allclose(found, found.T)
    assert np.allclose(block_influence(states), 1 - np.cos(np.radians([30, 60, 10])))


def test_the_mean_is_over_tokens() -> None:
    both = np.concatenate([turned(30, 10), turned(90, 10)], axis=1)
    assert angular_distances(both)[0, 1] == pytest.approx(60 / 180)


def test_candidates_are_a_block_and_single_layers_but_never_the_ends() -> None:
    states = turned(1, 20, 2, 30, 10, 10, 3, 1)
    found = removal_candidates(angular_distances(states), block_influence(states), 2)
    assert found == [frozenset({5, 6}), frozenset({2, 6})]
    assert removal_candidates(angular_distances(states), block_influence(states), 6) == [
        frozenset(range(1, 7))
    ]
    assert removal_candidates(angular_distances(states), block_influence(states), 7) == []
    assert removal_candidates(angular_distances(states), block_influence(states), 0) == []


def flags(text: str) -> np.ndarray:
    return np.array([letter == "+" for letter in text], bool)


@pytest.mark.parametrize(
    ("text", "length", "steps", "full"),
    [
        ("+++++++", 3, 2, 2),  # three and one, three
        ("+-+-+-", 2, 3, 0),
        ("------", 4, 6, 0),
        ("++-+++++", 8, 2, 0),
        ("++-+++++", 2, 3, 3),
        ("", 2, 0, 0),
    ],
)
def test_steps_are_those_of_greedy_decoding(text: str, length: int, steps: int, full: int) -> None:
    tokens, share = tokens_per_step([flags(text)], length)
    assert tokens == pytest.approx(len(text) / steps if steps else 1.0)
    assert share == pytest.approx(full / steps if steps else 0.0)


def test_tokens_per_step_equal_a_simulation() -> None:
    generator = np.random.default_rng(1)
    texts = [generator.random(200) < 0.7 for _ in range(5)]
    for length in (1, 3, 9):
        steps = full = 0
        for text in texts:
            left = list(text)
            while left:
                taken = 0
                while taken < length and left and left[0]:
                    left.pop(0)
                    taken += 1
                left = left[1:]
                steps += 1
                full += taken == length
        assert tokens_per_step(texts, length) == pytest.approx((1000 / steps, full / steps))


def test_costs_are_interpolated() -> None:
    assert interpolated_costs([4.0, 5.0], [2.0, 4.0], 0.25) == [3.5, 4.75]
    assert interpolated_costs([4.0, 5.0], [2.0, 4.0], 1.5) == [1.0, 3.5]


def test_the_speedup_is_that_of_the_best_length() -> None:
    always = [flags("+" * 100)]
    assert best_speedup(always, [0.1, 0.1], [1.0, 1.1, 1.2, 1.3]) == Speedup(3, 4.0, 4.0 / 1.6)
    assert best_speedup(always, [0.1, 0.15], [1.0, 1.1, 1.2, 1.3]) == Speedup(
        3, 4.0, pytest.approx(4.0 / 1.65)
    )
    assert best_speedup([flags("-" * 100)], [0.1, 0.2], [1.0, 1.1, 1.2]) == Speedup(0, 1.0, 1.0)
    assert best_speedup(always, [5.0, 5.0], [1.0, 1.1]) == Speedup(0, 1.0, 1.0)
