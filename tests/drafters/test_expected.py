"""Copies from an expected text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import plugins
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import UNKNOWN
from localspec.drafters.expected import BEGINNING, MOST, OTHER, SKIPPED, ExpectedDraft
from localspec.engines.toy import Toy

TOY = Toy(vocab_size=100, context=400)
SAMPLER = Sampler(Sampling())
PROMPT = [1, 2, 3]


def guesses(drafter: ExpectedDraft, answer: list[int], count: int = 4) -> list[int]:
    return [guess.token for guess in islice(drafter.propose([*PROMPT, *answer], SAMPLER), count)]


def expecting(answer: list[int], times: int = 0) -> ExpectedDraft:
    drafter = ExpectedDraft(Cursor(TOY.session()), times=times)
    drafter.expect(PROMPT, answer)
    return drafter


@pytest.mark.parametrize(
    ("answer", "following"),
    [
        ([], [10, 11, 12, 13]),
        ([10, 11], [12, 13, 14, 15]),
        ([10, 99], [12, 13, 14, 15]),  # another token
        ([10, 99, 11], [12, 13, 14, 15]),  # one more
        ([10, 12], [13, 14, 15, 16]),  # one fewer
        ([10, 11, 99, 98, 14], [15, 16, 17, 18]),  # two others
        ([10, 11, 12, 13, 14, 15, 16, 17, 18, 19], []),
        ([99, 98, 97, 96, 95, 94], []),  # another text
        ([99, 98, 97, 96, 95, 94, 14, 15], [16, 17, 18, 19]),  # up to here
    ],
)
def test_guesses_follow_the_place_that_the_answer_has_reached(
    answer: list[int], following: list[int]
) -> None:
    assert guesses(expecting(list(range(10, 20))), answer) == following


def test_an_answer_may_begin_anywhere_in_a_text_whose_beginning_is_not_known() -> None:
    drafter = expecting([UNKNOWN, *range(10, 20)])
    assert guesses(drafter, []) == []
    assert guesses(drafter, [50, 51]) == []
    assert guesses(drafter, [50, 51, 14]) == [15, 16, 17, 18]
    assert guesses(drafter, [50, 51, 14, 15]) == [16, 17, 18, 19]


def test_guesses_end_where_the_text_is_not_known_yet() -> None:
    drafter = expecting([10, 11, 12, UNKNOWN, 20, 21, 22, 23, 24])
    assert guesses(drafter, [10]) == [11, 12]
    assert guesses(drafter, [10, 11, 12]) == []
    assert guesses(drafter, [10, 11, 12, 13, 14, 20, 21]) == [22, 23, 24]


def test_the_place_is_found_again_after_an_answer_that_was_taken_back() -> None:
    drafter = expecting(list(range(10, 20)))
    assert guesses(drafter, [10, 11, 12, 13]) == [14, 15, 16, 17]
    assert guesses(drafter, [10, 11, 13]) == [14, 15, 16, 17]
    assert guesses(drafter, [10]) == [11, 12, 13, 14]


def test_a_timestamp_that_differs_costs_itself_alone_and_moves_the_one_beside_it() -> None:
    drafter = expecting([50, 10, 11, 60, 60, 12, 13, 70], times=50)
    assert guesses(drafter, [53]) == [10, 11, 60, 60]
    assert guesses(drafter, [53, 10, 11, 62]) == [62, 12, 13, 70]
    assert guesses(drafter, [53, 10, 11, 62, 62]) == [12, 13, 70]


def test_without_an_expected_text_there_are_no_guesses() -> None:
    drafter = ExpectedDraft(Cursor(TOY.session()))
    assert guesses(drafter, [1, 2]) == []
    drafter.expect(PROMPT, [])
    assert guesses(drafter, []) == []


def test_confidence_falls_where_the_answer_left_the_expected_text() -> None:
    drafter = expecting(list(range(10, 30)))
    sure = next(drafter.propose([*PROMPT, *range(10, 20)], SAMPLER)).confidence
    answer = [10, 11, 12, 13, 14, 15, 90, 17, 91, 19, 92, 21, 93]
    unsure = next(drafter.propose([*PROMPT, *answer], SAMPLER)).confidence
    assert unsure < 0.7 < 0.85 < sure <= 1


@given(st.lists(st.integers(0, 5), max_size=20), st.lists(st.integers(0, 5), max_size=20))
def test_scores_are_those_of_the_best_local_alignments(expected: list[int], answer: list[int]) -> None:
    drafter = expecting(expected)
    guesses(drafter, answer)
    if expected:
        assert drafter._scores[-1].tolist() == pytest.approx(aligned(answer, expected))


def aligned(answer: list[int], expected: list[int]) -> list[float]:
    """Return the scores cell by cell."""
    row = [BEGINNING, *([0.0] * len(expected))]
    for token in answer:
        before, row = row, []
        for at in range(len(expected) + 1):
            ways = [before[at] + SKIPPED]
            if at:
                ways += [
                    before[at - 1] + (1.0 if expected[at - 1] == token else OTHER),
                    row[at - 1] + SKIPPED,
                ]
            row.append(max(ways))
        row = [min(max(score, 0.0), MOST) for score in row]
    return row


def test_an_expected_answer_takes_few_passes_and_another_is_not_believed(ask: Callable[..., Any]) -> None:
    plain = ask(Cursor(TOY.session()), prompt=PROMPT, room=40).tokens
    for answer, most in ((plain, 40 // 8 + 2), (plain[::-1], 41)):
        target = Cursor(TOY.session())
        drafter = ExpectedDraft(target)
        drafter.expect(PROMPT, answer)
        policy = plugins.parse("draft_length", "fixed:tokens=8").make()
        found = ask(target, drafter, policy, prompt=PROMPT, room=40)
        assert found.tokens == plain
        assert len(found.steps) <= most
