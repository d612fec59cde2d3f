from __future__ import annotations

import contextlib
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.drafters.ngram import Ngram
from localspec.engines.toy import Toy
from localspec.errors import BadValue

TARGET = Cursor(Toy().session())
SAMPLER = Sampler(Sampling())

token = st.integers(0, 2)
sizes = st.tuples(st.integers(1, 5), st.integers(1, 5)).map(sorted)
edits = st.lists(st.tuples(st.integers(0, 40), st.lists(token, max_size=20)), max_size=8)


class Bomb(int):
    """A token that an interrupt hits the moment it is looked up for the `left`-th time."""

    left = 0

    def __hash__(self) -> int:
        Bomb.left -= 1
        if Bomb.left == 0:
            raise KeyboardInterrupt
        return super().__hash__()


def guessed(drafter: Ngram, text: list[int], count: int = 60) -> list[int]:
    return [guess.token for guess in islice(drafter.propose(text, SAMPLER), count)]


def naive(text: list[int], longest: int, shortest: int, count: int = 60) -> list[int]:
    """Scan for the longest match of the end, latest first, and copy on from it, guesses included."""
    end = len(text)
    for size in range(min(longest, end), shortest - 1, -1):
        for at in range(end - 1, size - 1, -1):
            if text[at - size : at] == text[end - size :]:
                copied = [*text]
                for step in range(min(count, end)):
                    copied.append(copied[at + step])
                return copied[end:]
    return []


@given(sizes, edits)
def test_guesses_are_those_of_a_naive_scan_after_any_edits(
    sizes: list[int], edits: list[tuple[int, list[int]]]
) -> None:
    shortest, longest = sizes
    drafter = Ngram(TARGET, longest=longest, shortest=shortest)
    text: list[int] = []
    for kept, added in edits:
        text = text[:kept] + added
        assert guessed(drafter, text) == naive(text, longest, shortest)


@given(st.lists(token, min_size=9, max_size=20), st.integers(1, 60))
def test_an_interrupt_leaves_it_right(text: list[int], moment: int) -> None:
    drafter = Ngram(TARGET, longest=4, shortest=1)
    Bomb.left = moment
    with contextlib.suppress(KeyboardInterrupt):
        guessed(drafter, [Bomb(token) for token in text])
    Bomb.left = 0
    for other in (text[:end] for end in range(len(text), -1, -1)):
        assert guessed(drafter, other) == naive(other, 4, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([1, 2, 3], [], id="no match"),
        pytest.param([1, 2, 7, 8, 1, 2], [7, 8, 1, 2, 7, 8], id="its period goes on"),
        pytest.param([1, 2, 5, 1, 2, 6, 1, 2], [6, 1, 2, 6, 1, 2, 6, 1], id="the latest first"),
        pytest.param([9, 1, 2, 5, 1, 2, 6, 9, 1, 2], [5, 1, 2, 6, 9, 1, 2, 5, 1, 2], id="the longest first"),
        pytest.param([4, 4, 4], [4, 4, 4], id="one token again and again"),
        pytest.param([1, 7, 1], [], id="a match of one is too short"),
    ],
)
def test_examples(text: list[int], expected: list[int]) -> None:
    assert guessed(Ngram(TARGET), text) == expected


def test_guesses_are_point_masses() -> None:
    guess = next(Ngram(TARGET).propose([1, 2, 1, 2], SAMPLER))
    assert guess.probs is None


def test_a_longest_match_below_the_shortest_is_refused() -> None:
    with pytest.raises(BadValue, match="`longest` of `ngram` is 1 and `shortest` is 2"):
        Ngram(TARGET, longest=1)
