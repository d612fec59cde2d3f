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
from localspec.drafters.expected import ExpectedDraft
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
        ([10, 99, 98, 97, 14], [15, 16, 17, 18]),  # three others
        ([10, 11, 12, 13, 14, 15, 16, 17, 18, 19], []),
    ],
)
def test_guesses_follow_the_place_that_the_answer_has_reached(
    answer: list[int], following: list[int]
) -> None:
    assert guesses(expecting(list(range(10, 20))), answer) == following


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
    unsure = next(drafter.propose([*PROMPT, 90, 91, 92, 93, 94, 95, 96], SAMPLER)).confidence
    assert unsure < 0.5 < sure <= 1


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_distances_are_those_of_levenshtein(expected: list[int], answer: list[int]) -> None:
    drafter = expecting(expected)
    guesses(drafter, answer)
    if expected:
        found = [int(distance) for distance in drafter._distances[-1]]
        assert found == [levenshtein(answer, expected[:end]) for end in range(len(expected) + 1)]


def levenshtein(one: list[int], other: list[int]) -> int:
    row = list(range(len(other) + 1))
    for token in one:
        before, row = row, [row[0] + 1]
        for at, expected in enumerate(other):
            row.append(min(before[at] + (token != expected), before[at + 1] + 1, row[at] + 1))
    return row[-1]


def test_an_expected_answer_takes_one_pass_and_another_is_not_believed(ask: Callable[..., Any]) -> None:
    plain = ask(Cursor(TOY.session()), prompt=PROMPT, room=40).tokens
    for answer, most in ((plain, 40 // 8 + 2), (plain[::-1], 41)):
        target = Cursor(TOY.session())
        drafter = ExpectedDraft(target)
        drafter.expect(PROMPT, answer)
        policy = plugins.parse("draft_length", "fixed:tokens=8").make()
        found = ask(target, drafter, policy, prompt=PROMPT, room=40)
        assert found.tokens == plain
        assert len(found.steps) <= most
