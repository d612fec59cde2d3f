from __future__ import annotations

import numpy as np
import pytest

from localspec.drafting.speedup import Worth, between, rounds_of, worth
from localspec.steps.prune.layer_selection import angles, candidates, influences


def turned(*degrees: float) -> np.ndarray:
    """Return states of one token that each layer turns by so many degrees."""
    angle = np.radians(np.cumsum([0.0, *degrees]))
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)[:, None, :] * 3.0


def test_angles_and_influences_are_those_of_a_turn() -> None:
    states = turned(30, 60, 10)
    found = angles(states)
    assert found[0, 1] == pytest.approx(30 / 180)
    assert found[0, 2] == pytest.approx(90 / 180)
    assert found[1, 3] == pytest.approx(70 / 180)
    assert np.allclose(found, found.T)
    assert np.allclose(influences(states), 1 - np.cos(np.radians([30, 60, 10])))


def test_the_mean_is_over_tokens() -> None:
    both = np.concatenate([turned(30, 10), turned(90, 10)], axis=1)
    assert angles(both)[0, 1] == pytest.approx(60 / 180)


def test_candidates_are_a_block_and_single_layers_but_never_the_ends() -> None:
    states = turned(1, 20, 2, 30, 10, 10, 3, 1)
    found = candidates(angles(states), influences(states), 2)
    assert found == [frozenset({5, 6}), frozenset({2, 6})]
    assert candidates(angles(states), influences(states), 6) == [frozenset(range(1, 7))]
    assert candidates(angles(states), influences(states), 7) == []
    assert candidates(angles(states), influences(states), 0) == []


def flags(text: str) -> np.ndarray:
    return np.array([letter == "+" for letter in text], bool)


@pytest.mark.parametrize(
    ("text", "depth", "rounds", "whole"),
    [
        ("+++++++", 3, 2, 2),  # three and one, three
        ("+-+-+-", 2, 3, 0),
        ("------", 4, 6, 0),
        ("++-+++++", 8, 2, 0),
        ("++-+++++", 2, 3, 3),
        ("", 2, 0, 0),
    ],
)
def test_rounds_are_those_of_greedy_decoding(text: str, depth: int, steps: int, whole: int) -> None:
    tokens, share = rounds_of([flags(text)], depth)
    assert tokens == pytest.approx(len(text) / steps if steps else 1.0)
    assert share == pytest.approx(whole / steps if steps else 0.0)


def test_rounds_are_what_a_simulation_says() -> None:
    generator = np.random.default_rng(1)
    texts = [generator.random(200) < 0.7 for _ in range(5)]
    for depth in (1, 3, 9):
        steps = whole = 0
        for text in texts:
            left = list(text)
            while left:
                taken = 0
                while taken < depth and left and left[0]:
                    left.pop(0)
                    taken += 1
                left = left[1:]
                steps += 1
                whole += taken == depth
        assert rounds_of(texts, depth) == pytest.approx((1000 / steps, whole / steps))


def test_what_is_gone_costs_its_share() -> None:
    assert between([4.0, 5.0], [2.0, 4.0], 0.25) == [3.5, 4.75]
    assert between([4.0, 5.0], [2.0, 4.0], 1.5) == [1.0, 3.5]


def test_worth_is_at_the_best_depth() -> None:
    always = [flags("+" * 100)]
    assert worth(always, [0.1, 0.1], [1.0, 1.1, 1.2, 1.3]) == Worth(3, 4.0, 4.0 / 1.6)
    assert worth(always, [0.1, 0.15], [1.0, 1.1, 1.2, 1.3]) == Worth(3, 4.0, pytest.approx(4.0 / 1.65))
    assert worth([flags("-" * 100)], [0.1, 0.2], [1.0, 1.1, 1.2]) == Worth(0, 1.0, 1.0)
    assert worth(always, [5.0, 5.0], [1.0, 1.1]) == Worth(0, 1.0, 1.0)
