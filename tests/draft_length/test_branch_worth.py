"""Branches pay by their probability, against what one more token in this pass and the next one costs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from localspec.core.types import Guess, Step
from localspec.draft_length.adaptive import Adaptive
from localspec.draft_length.adaptive.acceptance import Acceptance
from localspec.draft_length.adaptive.branches import learn, reaching, worth
from localspec.draft_length.confidence import Confidence


def step(
    tokens: Sequence[int], *, width: int = 1, branches: Sequence[Guess] = (), ahead: Sequence[int] = ()
) -> Step:
    """Return a step whose pass of `width` tokens takes a second, and 0.05 for each token more."""
    seconds = 1 + 0.05 * (width - 1)
    return Step(tuple(tokens), 0, 0, 0.0, seconds, branches=tuple(branches), ahead=tuple(ahead))


def knowing(said: float, at: float = 0.5, rounds: int = 40) -> Adaptive:
    """Return a policy that saw branches of confidence `at`, of which the target said a share."""
    policy = Adaptive()
    policy.begin([1])
    policy.learn(step([1]))
    for number in range(rounds):
        hit = (number + 1) * said // 1 > number * said // 1
        policy.learn(step([2 if hit else 3], width=2, branches=[Guess(2, None, at, after=())]))
        policy.learn(step([4]))
        policy.learn(step([4], width=6, branches=[Guess(9, None, 0.01, after=())] * 5))
    policy.begin([1])
    policy.learn(step([1]))
    return policy


@pytest.mark.parametrize(("said", "least", "most"), [(0.6, 1, 1), (0.3, 1, 1), (0.0, 0, 0.4)])
def test_a_branch_is_taken_if_the_target_says_it_often_enough(said: float, least: float, most: float) -> None:
    """One that it never says is tried now and then."""
    policy, taken = knowing(said, rounds=150), 0
    for _ in range(30):
        taken += policy.wants_more([], Guess(2, None, 0.5, after=()))
        policy.learn(step([4]))
    assert least <= taken / 30 <= most


def test_a_branch_behind_unlikely_guesses_is_not_worth_its_token() -> None:
    policy = knowing(0.3)
    unlikely = [Guess(token, None, 0.1) for token in (1, 2, 3)]
    assert policy.wants_more(unlikely, Guess(9, None, 0.5, after=()))
    assert not policy.wants_more(unlikely, Guess(9, None, 0.5, after=(1, 2, 3)))


def test_a_branch_is_reached_by_the_path_or_another_branch() -> None:
    acceptance = Acceptance()
    draft = [
        Guess(1, None, 0.5),
        Guess(7, None, 0.4, after=()),
        Guess(2, None, 0.5),
        Guess(8, None, 0.5, after=(7,)),
    ]
    assert reaching(draft, (), acceptance) == 1
    assert reaching(draft, (1,), acceptance) == pytest.approx(0.5)
    assert reaching(draft, (1, 2), acceptance) == pytest.approx(0.25)
    assert reaching(draft, (7,), acceptance) == pytest.approx(0.4)
    assert reaching(draft, (7, 8), acceptance) == pytest.approx(0.2)


def test_a_branch_costs_a_token_in_this_pass_and_one_in_the_next() -> None:
    assert worth(0.5, 1.0, 0.1) == pytest.approx(0.5 * 0.9 - 0.1)


def test_what_the_target_said_after_a_branch_is_learned_too() -> None:
    acceptance = Acceptance()
    branches = [
        Guess(5, None, 0.5, after=()),
        Guess(6, None, 0.5, after=(5,)),
        Guess(6, None, 0.5, after=(4,)),
    ]
    for _ in range(30):
        learn(step([5], branches=branches, ahead=[6]), acceptance)
    assert acceptance.of_branch("", 0.5) > 0.9
    for _ in range(60):
        learn(step([3], branches=branches), acceptance)  # only the first was decided
    assert acceptance.of_branch("", 0.5) == pytest.approx(0.5, abs=0.05)


def test_a_pass_with_branches_is_no_plain_pass() -> None:
    policy = Adaptive()
    policy.begin([1])
    policy.learn(step([1]))
    for _ in range(30):
        policy.learn(step([2], width=4, branches=[Guess(9, None, 0.5, after=())] * 3))
    widths = [width for width, _ in policy.state()["passes"]]
    assert widths == [4]


def test_confidence_asks_for_that_of_a_branch_itself() -> None:
    policy = Confidence(min_confidence=0.4)
    assert not policy.wants_more([Guess(1, None, 0.9)], Guess(2, None, 0.3, after=()))
    assert policy.wants_more([Guess(1, None, 0.1)], Guess(2, None, 0.5, after=()))
    assert policy.wants_more([Guess(1, None, 0.9), Guess(2, None, 0.1, after=())], Guess(3))
