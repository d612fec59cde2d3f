from __future__ import annotations

import statistics

import numpy as np
import pytest

from localspec.drafting import mask_search, skip_mask
from localspec.drafting.margin_cost import log_softmax, margin_cost, point_cost
from localspec.drafting.mask_search import Trial, search, skipped
from localspec.drafting.skip_mask import SkipMask
from localspec.errors import BadValue

LAYERS, RATIO = 10, 0.4
PLANTED = skip_mask.parse("a2-4+m5-7")


def distance(mask: SkipMask) -> float:
    """Return how many sub-blocks of PLANTED a mask lacks: what a search must find out."""
    return len(PLANTED.attention - mask.attention) + len(PLANTED.mlp - mask.mlp)


def test_a_mask_has_one_spelling() -> None:
    mask = SkipMask(frozenset({4, 5, 6, 9}), frozenset({3}))
    assert str(mask) == "a4-6+a9+m3"
    assert skip_mask.parse(str(mask)) == mask
    assert len(mask) == 5
    for text in ("", "4", "b4", "a4-", "a4,m5", "a4+", "smollm2-135m", "a12345"):
        assert not skip_mask.is_mask(text)
        with pytest.raises(BadValue, match="names no sub-blocks"):
            skip_mask.parse(text)


@pytest.mark.parametrize("text", ["a0", "m9", "a3-12"])
def test_the_first_and_the_last_layer_are_kept(text: str) -> None:
    skip_mask.parse("a1-8+m1-8").check(LAYERS)
    with pytest.raises(BadValue, match="cannot be skipped: the model has 10 layers") as caught:
        skip_mask.parse(text).check(LAYERS)
    assert caught.value.hint == "Choose from 1 to 8; the first and the last layer are kept"


def test_every_mask_is_new_and_leaves_out_the_share() -> None:
    trials = search(distance, LAYERS, RATIO, steps=40, patience=40)
    assert {len(trial.mask) for trial in trials} == {skipped(LAYERS, RATIO)} == {6}
    assert len({str(trial.mask) for trial in trials}) == len(trials) == 40
    assert [trial.cost for trial in trials] == sorted(trial.cost for trial in trials)
    for trial in trials:
        trial.mask.check(LAYERS)


def test_it_finds_a_planted_mask_more_often_than_chance() -> None:
    guided = [
        search(distance, LAYERS, RATIO, every=2, patience=80, seed=seed, steps=80)[0] for seed in range(4)
    ]
    random = [
        search(distance, LAYERS, RATIO, every=999, patience=80, seed=seed, steps=80)[0] for seed in range(4)
    ]
    assert [trial.cost for trial in guided] == [0, 0, 0, 0]
    assert guided[0].mask == PLANTED
    assert statistics.mean(trial.cost for trial in random) > 0.5


def test_it_ends_when_nothing_gets_better() -> None:
    seen: list[Trial] = []
    trials = search(lambda mask: 1.0, LAYERS, RATIO, patience=7, tried=seen.append)
    assert len(trials) == len(seen) == 8
    assert len(search(lambda mask: 1.0, 4, 0.5, steps=60)) == 6  # all that there are


def test_a_space_that_is_exhausted_ends_the_search() -> None:
    assert len(search(distance, 4, 0.5, steps=500, every=2, patience=30)) == 6


def test_the_process_knows_the_masks_it_has_seen() -> None:
    random = np.random.default_rng(0)
    seen = random.random((20, 16)) < 0.4
    costs = random.random(20)
    mean, deviation = mask_search._predicted(seen, costs, np.concatenate([seen, ~seen[:3]]))
    assert mean[:20] == pytest.approx(costs, abs=0.05)
    assert deviation[:20].max() < 0.1 * deviation[20:].min()


def logs(*rows: list[float]) -> np.ndarray:  # type: ignore[type-arg]
    return np.log(np.array(rows, np.float32))


def test_the_margin_cost_is_the_formula() -> None:
    q, p = [0.7, 0.2, 0.1], [0.1, 0.1, 0.8]
    ratio = np.log(np.array(p) / q)
    due = sum(
        mine * max(np.log(0.5) + r, 0) + own * max(np.log(0.3) + r, 0)
        for mine, own, r in zip(p, q, ratio, strict=True)
    )
    assert margin_cost(logs(q), logs(p))[0] == pytest.approx(due, rel=1e-5)
    assert margin_cost(logs(q, q), logs(q, [0.4, 0.4, 0.2]))[0] == 0  # within the margin
    assert margin_cost(logs(q), logs(p))[0] > 1


def test_a_point_is_a_distribution_that_is_sure() -> None:
    q = logs([0.7, 0.2, 0.1], [0.05, 0.05, 0.9])
    with np.errstate(divide="ignore"):
        sure = logs([0, 0, 1], [1, 0, 0])
    assert point_cost(q, np.array([2, 0])) == pytest.approx(margin_cost(q, sure), rel=1e-5)
    assert point_cost(q, np.array([0, 2])).tolist() == [0, 0]


def test_log_softmax_sums_to_one() -> None:
    found = log_softmax(np.array([[1.0, 2.0, 3.0], [1000.0, 0.0, 0.0]], np.float32))
    assert np.exp(found).sum(axis=1) == pytest.approx([1, 1], rel=1e-6)
    assert found[0, 2] - found[0, 1] == pytest.approx(1)
