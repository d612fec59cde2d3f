"""Word times by dynamic time warping over attention."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from localspec.speech.types import RATE, Window, Word
from localspec.speech.whisper.alignment import Spoken, _merged, _starts, _without_pauses, split, words
from localspec.speech.whisper.model import SpeechModel


def cheapest(costs: np.ndarray) -> float:
    """Return the least cost of a path from the first token and frame to the last, by trying all."""
    rows, columns = costs.shape
    best = np.full((rows, columns), np.inf)
    best[0, 0] = costs[0, 0]
    for row in range(rows):
        for column in range(columns):
            before = [best[max(row - 1, 0), max(column - 1, 0)], best[max(row - 1, 0), column]]
            before.append(best[row, max(column - 1, 0)])
            if row or column:
                best[row, column] = costs[row, column] + min(before)
    return float(best[-1, -1])


def path_cost(costs: np.ndarray, starts: list[int]) -> float:
    """Return the cost of the path whose tokens begin at `starts`, along the frames in between."""
    total, column = 0.0, 0
    for row in range(len(starts)):
        last = starts[row + 1] if row + 1 < len(starts) else costs.shape[1] - 1
        ends = [max(last - 1, starts[row]), last] if row + 1 < len(starts) else [last]
        column = starts[row]
        total += min(float(costs[row, column : end + 1].sum()) for end in ends)
    return total


@given(st.integers(1, 4), st.integers(4, 7), st.integers(0, 10_000))
def test_tokens_begin_where_the_cheapest_path_meets_them(rows: int, columns: int, seed: int) -> None:
    costs = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    starts = _starts(costs).tolist()
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert path_cost(costs, starts) == pytest.approx(cheapest(costs), abs=1e-4)
    tries = ([0, *rest] for rest in combinations_with_replacement(range(columns), rows - 1))
    assert path_cost(costs, starts) <= min(path_cost(costs, each) for each in tries) + 1e-4


def test_a_diagonal_is_followed() -> None:
    costs = np.ones((3, 9), np.float32)
    for token in range(3):
        costs[token, 3 * token : 3 * token + 3] = -1
    assert _starts(costs).tolist() == [0, 3, 6]


def test_words_are_split_at_spaces_and_punctuation_joins_the_word_beside_it(model: SpeechModel) -> None:
    tokenizer: Tokenizer = model.tokenizer
    text = tokenizer.encode(' the hat, "is" in', add_special_tokens=False).ids
    found = _merged(split(tokenizer, text, "en"))
    assert "".join(word.text for word in found) == ' the hat, "is" in'
    assert [word.text.strip() for word in found] == ["the", "hat,", '"is"', "in"]
    assert [(word.first, word.last) for word in found][0][0] == 0
    assert all(left.last == right.first for left, right in zip(found, found[1:], strict=False))
    assert found[-1].last == len(text)
    assert isinstance(found[0], Spoken)


def test_a_word_beside_a_pause_is_shortened() -> None:
    found = [(Word(at, at + 0.3, f" w{at}"), at) for at in range(3)] + [(Word(4, 9, " long"), 3)]
    shorter = _without_pauses(found)
    assert shorter[-1][0].end == pytest.approx(4.6)
    assert shorter[:3] == found[:3]


def test_words_of_a_window_are_in_order_and_within_it(model: SpeechModel) -> None:
    samples = np.random.default_rng(0).normal(size=5 * RATE).astype(np.float32) / 10
    model.hear(model.encode(Window(0.0, samples)))
    prompt = model.tokens.prompt("en", "transcribe")
    text = model.tokenizer.encode(" the hat in the hat", add_special_tokens=False).ids
    first = model.tokens.first_time
    answer = [first, *text, first + 200]
    found = words(model, prompt, answer, [-0.5] * len(answer), 5.0, "en")
    assert [word.text for word, _ in found] == [" the", " hat", " in", " the", " hat"]
    assert [place for _, place in found] == sorted(place for _, place in found)
    assert found[-1][1] == len(answer) - 1
    times = [time for word, _ in found for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] <= 5
    assert all(word.probability == pytest.approx(np.exp(-0.5)) for word, _ in found)


def test_nothing_said_has_no_words(model: SpeechModel) -> None:
    assert words(model, [], [model.tokens.first_time], [0.0], 5.0, "en") == []
