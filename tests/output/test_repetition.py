"""Answers that repeat themselves without end, and answers that only look like it."""

from __future__ import annotations

import random

import pytest

from localspec.core.types import Tokens
from localspec.output.repetition import COUNTING_LENGTH, LENGTH, PERIOD, TIMES, Repetition

CHANCE = random.Random(7)


def words(count: int, most: int = 50_000) -> list[int]:
    return [CHANCE.randrange(most) for _ in range(count)]


def end_of(tokens: Tokens) -> int | None:
    """Return the number of tokens after which the answer is ended."""
    repetition = Repetition()
    return next((at for at, token in enumerate(tokens, 1) if repetition.add(token)), None)


@pytest.mark.parametrize("period", [1, 2, 3, 20, 170, 171, 300, PERIOD])
@pytest.mark.parametrize("before", [0, 1, 700])
def test_a_passage_without_an_end_is_ended(period: int, before: int) -> None:
    passage = words(period)
    text = words(before) + passage * (2 + max(TIMES, LENGTH // period + 1))
    assert end_of(text) == before + period + max(LENGTH, TIMES * period)


@pytest.mark.parametrize(
    "tokens",
    [
        words(20_000),
        words(20_000, 3),  # few different tokens, in no order
        words(20) * (LENGTH // 20),  # a list of equal lines that was asked for
        [0] * LENGTH,
        words(PERIOD) * TIMES,
        [token for number in range(2000) for token in (5, 6, number, 7)],  # a table whose lines count
        [token for _ in range(300) for token in [*words(1), 5, 6, 7, 8, 9]],  # lines with one other word
        [token for _ in range(8) for token in [*words(PERIOD), *[9] * 500]],
    ],
)
def test_other_texts_are_not(tokens: list[int]) -> None:
    assert end_of(tokens) is None


def test_it_begins_anew_after_a_change() -> None:
    repeated = words(30) * 100
    most = LENGTH + 30 - 1
    text = [*repeated[:most], -5, *repeated[:most]]
    assert end_of(text) is None
    assert end_of([*text, repeated[most]]) == len(text) + 1


DIGITS = 100_000  # and above: tokens of numbers


def digit() -> int:
    return DIGITS + CHANCE.randrange(10)


def end_of_counting(tokens: Tokens) -> int | None:
    """Return the same where some tokens are numbers."""
    repetition = Repetition(lambda token: token >= DIGITS)
    return next((at for at, token in enumerate(tokens, 1) if repetition.add(token)), None)


@pytest.mark.parametrize("period", [16, 41, PERIOD])
def test_a_passage_that_counts_is_ended_later(period: int) -> None:
    passage = words(period - 2)
    text = [
        token
        for number in range(10, 400)
        for token in (DIGITS + number // 10 % 10, DIGITS + number % 10, *passage)
    ]
    assert end_of(text) is None
    assert end_of_counting(text) == period + max(COUNTING_LENGTH, TIMES * period)


@pytest.mark.parametrize(
    "tokens",
    [
        [token for _ in range(2000) for token in (5, digit(), digit(), 7, 8, 9, 9)],  # a table
        [digit() for _ in range(9000)],
        [token for _ in range(99) for token in (*words(20), digit())],  # other words
        [token for _ in range(70) for token in (*[5, 6, 7, 8] * 10, digit())],  # a list that was asked for
    ],
)
def test_other_texts_with_numbers_are_not(tokens: list[int]) -> None:
    assert end_of_counting(tokens) is None
