"""The running estimates behind the adaptive draft length."""

from __future__ import annotations

import random

import pytest

from localspec.draft_length.adaptive.costs import PassCosts, robust_mean
from localspec.drafting.acceptance import ClassOdds, PositionRates, class_of, expected_tokens, shifted


def test_costs_between_seen_widths_lie_on_lines_and_never_fall() -> None:
    costs = PassCosts()
    for width, seconds in ((1, 1.0), (5, 3.0), (9, 2.0)):
        for _ in range(30):
            costs.learn(width, seconds)
    curve = costs.curve(12)
    assert curve[0] == pytest.approx(1.0)
    assert curve == sorted(curve)
    assert curve[4] == pytest.approx(2.0, rel=0.01)  # the wider pass tells that it costs no more
    assert costs.lower_bound(8) == pytest.approx(3.0, rel=0.01)


def test_an_outlier_moves_a_cost_little() -> None:
    assert robust_mean(1.0, 100.0, 50) < 1.05
    mean = robust_mean(1.0, 1.2, 50)
    for _ in range(40):
        mean = robust_mean(mean, 1.2, 50)
    assert mean == pytest.approx(1.2, rel=0.01)


def test_positions_follow_what_stood_and_borrow_from_the_one_before() -> None:
    rates, source = PositionRates(), random.Random(1)
    for _ in range(400):
        rates.extend(2)
        accepted = source.random() < 0.7
        rates.learn(0, accepted, rates.at(0))
        if accepted:
            rates.learn(1, source.random() < 0.4, rates.at(1))
        rates.update()
    assert rates.at(0) == pytest.approx(0.7, abs=0.12)
    assert rates.at(1) == pytest.approx(0.4, abs=0.15)
    assert rates.at(9) == rates.at(1)
    assert rates.first(4)[1:] == [rates.at(1)] * 3


def test_a_run_of_failures_is_a_change_and_one_is_not() -> None:
    rates = PositionRates()
    rates.extend(1)
    rates.learn(0, False, 0.95)
    assert not rates.changed
    for _ in range(5):
        rates.learn(0, False, 0.95)
    assert rates.changed
    assert not rates.improved
    rates.discount(4.0)
    assert not rates.changed


def test_classes_learn_how_much_surer_they_are() -> None:
    classes, source = ClassOdds(), random.Random(1)
    for _ in range(300):
        classes.learn("sure", 0.575, source.random() < 0.95)
        classes.learn("doubtful", 0.575, source.random() < 0.2)
    assert shifted(0.575, classes.odds["sure"]) == pytest.approx(0.95, abs=0.06)
    assert shifted(0.575, classes.odds["doubtful"]) == pytest.approx(0.2, abs=0.15)


def test_classes_are_by_source_and_confidence() -> None:
    assert class_of("a", 0.95) == class_of("a", 0.92)
    assert class_of("a", 0.95) != class_of("a", 0.3)
    assert class_of("a", 0.95) != class_of("b", 0.95)


def test_expected_tokens() -> None:
    assert list(expected_tokens([0.5, 0.5])) == [1.5, 1.75]
    assert shifted(0.0, 3.0) == 0.0
    assert shifted(0.5, 1.0) == 0.5
