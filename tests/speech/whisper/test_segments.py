"""Segments of a window's tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.core.stop import LENGTH, STOP
from localspec.speech.types import RATE, Window, Word
from localspec.speech.whisper.decoding import Decoded, compression
from localspec.speech.whisper.segments import segments, spans, unread
from localspec.speech.whisper.vocabulary import SpeechTokens

TOKENS = SpeechTokens(
    start=51, end=50, no_timestamps=60, languages={}, tasks={}, suppressed=(), alignment_heads=()
)


class Letters:
    def decode(self, tokens: list[int]) -> str:
        return "".join(f" {chr(97 + token)}" for token in tokens)


def at(seconds: float) -> int:
    return TOKENS.first_time + round(seconds / 0.02)


def decoded(*tokens: int, finish: str = STOP) -> Decoded:
    return Decoded(tokens, "", finish, 0.0, -0.3, 0.1, 1.0)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((at(0), 1, 2, at(2)), [(0, 2, 1, 3)]),
        ((at(0), 1, at(2), at(3), 2, at(4)), [(0, 2, 1, 2), (3, 4, 4, 5)]),
        ((at(0.5), 1, 2), [(0.5, 10, 1, 3)]),  # no closing time
        ((at(0), 1, at(20)), [(0, 10, 1, 2)]),  # beyond the window
        ((at(0), at(2)), []),
        ((), []),
    ],
)
def test_a_segment_lies_between_two_times(answer: tuple[int, ...], expected: list[tuple[float, ...]]) -> None:
    assert spans(TOKENS, answer, 10.0) == expected


@pytest.mark.parametrize(
    ("answer", "finish", "expected"),
    [
        ((at(0), 1, at(5)), STOP, None),
        ((at(0), 1, at(5), at(5)), STOP, 5.0),
        ((at(0), 1, at(9.5), at(9.5)), STOP, None),  # less than a second is left
        ((at(0), 1, at(5), at(5), 2, 2, 2), LENGTH, 5.0),
        ((at(0), 1, 1, 1), LENGTH, None),  # no time to go on from: what there is, is kept
    ],
)
def test_a_window_that_was_not_read_to_its_end_is_read_again(
    answer: tuple[int, ...], finish: str, expected: float | None
) -> None:
    assert unread(TOKENS, decoded(*answer, finish=finish), 10.0) == expected


def test_times_are_those_of_the_file_or_of_the_words() -> None:
    window = Window(100.0, np.zeros(10 * RATE, np.float32))
    found = decoded(at(0), 1, 2, at(2), at(3), 5, at(4))
    first, second = segments(TOKENS, Letters(), found, window, None)  # type: ignore[arg-type]
    assert (first.start, first.end, first.text, first.tokens) == (100.0, 102.0, " b c", (1, 2))
    assert (second.start, second.end, second.text) == (103.0, 104.0, " f")
    words = [(Word(0.2, 0.9, " b"), 2), (Word(1.0, 1.5, " c"), 3), (Word(3.1, 3.9, " f"), 6)]
    first, second = segments(TOKENS, Letters(), found, window, None, words)  # type: ignore[arg-type]
    assert (first.start, first.end, second.start, second.end) == (100.2, 101.5, 103.1, 103.9)
    assert [word.text for word in (*first.words, *second.words)] == [" b", " c", " f"]


def test_what_is_read_again_is_left_out() -> None:
    window = Window(0.0, np.zeros(10 * RATE, np.float32))
    found = decoded(at(0), 1, at(5), at(5), 2, 2, finish=LENGTH)
    assert [each.text for each in segments(TOKENS, Letters(), found, window, 5.0)] == [" b"]  # type: ignore[arg-type]


def test_an_answer_that_repeats_itself_or_is_unsure_is_poor() -> None:
    fine = decoded(1)
    assert not fine.poor
    assert replace(fine, compression=compression("and so " * 40)).poor
    assert replace(fine, logprob=-1.5).poor
    silent = replace(fine, logprob=-1.5, no_speech=0.9)
    assert silent.silent
    assert not silent.poor
    assert compression("") == 0
