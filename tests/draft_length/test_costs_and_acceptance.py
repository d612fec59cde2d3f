"""The running estimates behind the adaptive draft length."""

from __future__ import annotations

import random

import pytest

from localspec.draft_length.adaptive.acceptance import LIKELY, Acceptance
from localspec.draft_length.adaptive.costs import GUESS, RECENT, WIDER, Costs
from localspec.draft_length.adaptive.ledger import EPSILON, Ledger


def costs_of(*passes: tuple[int, float], times: int = 3) -> Costs:
    costs = Costs(17)
    for _ in range(times):
        for width, seconds in passes:
            costs.learn_pass(width, seconds)
    return costs


def test_costs_between_seen_widths_lie_on_lines_and_never_fall() -> None:
    curve = costs_of((1, 1.0), (5, 3.0), (9, 2.0)).curve
    assert curve[0] == pytest.approx(1.0)
    assert curve == sorted(curve)
    assert curve[4] == curve[8] == pytest.approx(2.5)  # their mean: neither may be above the other
    assert curve[2] == pytest.approx(1.75)
    assert curve[16] == pytest.approx(2.5 + 8 * 1.5 / 8)  # goes on as it rose so far


def test_a_cost_is_the_median_of_the_last() -> None:
    costs = costs_of((1, 1.0), (2, 1.1))
    costs.learn_pass(2, 500.0)
    assert costs.curve[1] == pytest.approx(1.1)
    for _ in range(RECENT):
        costs.learn_pass(2, 1.2)
    assert costs.curve[1] == pytest.approx(1.2)


def test_a_pass_costs_no_more_than_as_many_passes_and_one() -> None:
    costs = costs_of((1, 1.0))
    costs.learn_pass(2, 500.0)
    assert costs.curve[1] == pytest.approx(3.0)


def test_a_single_cost_of_long_ago_is_forgotten() -> None:
    costs = costs_of((1, 1.0))
    costs.learn_pass(2, 500.0)
    for _ in range(20 * RECENT):
        costs.learn_pass(1, 1.0)
    assert costs.curve[1] == pytest.approx(1 + WIDER)


def test_unknown_costs_are_assumed() -> None:
    costs = costs_of((1, 2.0))
    assert costs.curve[:3] == pytest.approx([2.0, 2.0 + 2 * WIDER, 2.0 + 4 * WIDER])
    assert costs.least == [2.0] * 17
    assert costs.guess("copies") == 0.0
    assert costs.guess("model", lazy=True) == pytest.approx(2 * GUESS)
    assert costs.reading("model", 11) == pytest.approx(10 * WIDER * 2 * GUESS)
    assert costs.reach == 2
    assert costs_of((1, 1.0), (2, 1.0)).reach == 4


def test_reading_and_guessing_are_told_apart() -> None:
    costs = costs_of((1, 1.0))
    for _ in range(3):
        costs.learn_guesses("model", [2.3, 0.3, 0.3], 101)
    assert costs.guess("model") == pytest.approx(0.3)
    assert costs.reading("model", 2) == pytest.approx(0.02)
    alone = costs_of((1, 1.0))
    for _ in range(3):
        alone.learn_guesses("model", [2.2], 11)  # ten tokens and a guess, each token a tenth of a guess
    assert alone.guess("model") == pytest.approx(1.1)


def test_one_time_work_of_a_draft_model_is_not_its_cost() -> None:
    costs = costs_of((1, 1.0))
    costs.learn_guesses("model", [50.0], 11)
    assert costs.guess("model") == pytest.approx(GUESS)
    assert costs.reading("model", 2) == pytest.approx(WIDER * GUESS)
    for _ in range(2):
        costs.learn_guesses("copies", [1e-5], 0)
    assert costs.guess("copies") == 1e-5


def test_what_a_source_cost_long_ago_is_forgotten() -> None:
    costs = costs_of((1, 1.0))
    for _ in range(3):
        costs.learn_guesses("model", [5.0], 1)
    assert costs.guess("model", lazy=True) == 5.0
    for _ in range(60 * RECENT):
        costs.learn_pass(1, 1.0)
    assert costs.guess("model", lazy=True) == GUESS


def test_rates_follow_what_was_accepted() -> None:
    rates, source = Acceptance(), random.Random(1)
    rates.begin()
    for _ in range(400):
        rates.advance(1)
        rates.learn("one", 0.7, 0, None, source.random() < 0.4)
        rates.learn("one", 0.7, 1, 0.7, source.random() < 0.95)
    assert rates.of("one", 0.7, 0) == pytest.approx(0.4, abs=0.1)
    assert rates.of("one", 0.7, 1) == rates.of("one", 0.7, 5) == pytest.approx(0.95, abs=0.06)
    assert rates.next("one", None) == pytest.approx(0.4, abs=0.1)
    assert rates.next("one", 0.7) == pytest.approx(0.95, abs=0.06)
    assert rates.run("one", 0.4) == pytest.approx(0.95, abs=0.06)


def test_without_evidence_the_drafter_is_believed() -> None:
    rates = Acceptance()
    assert rates.of("one", 0.83, 0) == rates.next("one", 0.83) == 0.83
    assert rates.next("one", None) == LIKELY
    assert rates.of("one", 0.5, 0, luck=1.0) == pytest.approx(0.5 + (0.25 / 5) ** 0.5)
    assert rates.of("one", 0.99, 0, luck=9.0) == 1.0


def test_bins_and_sources_have_rates_of_their_own() -> None:
    rates = Acceptance()
    for _ in range(9):
        rates.learn("one", 0.95, 0, None, False)
    assert rates.of("one", 0.92, 0) < 0.4
    assert rates.of("one", 0.3, 0) == 0.3
    assert rates.of("another", 0.95, 0) == 0.95


def test_this_answer_outweighs_earlier_ones() -> None:
    rates = Acceptance()
    for _ in range(100):
        rates.learn("one", 0.7, 0, None, True)
    rates.begin()
    before = rates.of("one", 0.7, 0)
    assert before > 0.97
    for _ in range(8):
        rates.learn("one", 0.7, 0, None, False)
    assert rates.of("one", 0.7, 0) < 0.5
    rates.advance(500)  # and is forgotten as it goes on
    assert rates.of("one", 0.7, 0) > 0.8
    for _ in range(12):
        rates.begin()
    assert rates.of("one", 0.7, 0) == 0.7


def test_a_ledger_allows_a_pass_and_a_share_of_the_time() -> None:
    ledger = Ledger()
    assert ledger.allows(1.0, one=1.0)
    assert not ledger.allows(1.1, one=1.0)
    ledger.enter(1.0, 100.0)
    assert ledger.allows(100 * EPSILON, one=1.0)
    assert not ledger.allows(100 * EPSILON + 0.1, one=1.0)
    ledger.enter(-5.0, 100.0)
    assert ledger.allows(5.0, one=1.0)


def test_a_stall_at_the_first_guess_of_a_free_source_is_not_believed() -> None:
    costs = Costs(8)
    costs.learn_pass(1, 1.0)
    costs.learn_guesses("suffix", [14.6], 0)
    assert costs.guess("suffix") == 0.0
    costs.learn_guesses("suffix", [0.01], 0)
    costs.learn_guesses("suffix", [0.01], 0)
    assert costs.guess("suffix") == 0.01
