"""Each word goes to the speaker who says it, and none gets lost."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from localspec.speech.speakers import REACH, assign
from localspec.speech.types import Segment, Turn, Word


def said(text: str, start: float, each: float = 0.4) -> Segment:
    """Return a segment whose words take `each` seconds."""
    words = tuple(
        Word(start + at * each, start + (at + 1) * each, f" {word}") for at, word in enumerate(text.split())
    )
    return Segment(start, words[-1].end, f" {text}", tokens=(1, 2, 3), words=words, logprob=-0.2)


def lines(segments: list[Segment]) -> list[tuple[str | None, str]]:
    return [(segment.speaker, segment.text) for segment in segments]


def test_a_segment_of_one_speaker_stays_whole() -> None:
    segment = said("good morning to you", 1.0)
    (found,) = assign([segment], [Turn(0.9, 3.0, "A"), Turn(3.0, 5.0, "B")])
    assert replace(found, speaker=None, words=segment.words) == segment
    assert found.speaker == "A"
    assert {word.speaker for word in found.words} == {"A"}


def test_a_segment_is_split_where_its_speakers_change() -> None:
    segment = said("is it ready yes it is good", 0.0)
    found = assign([segment], [Turn(0.0, 1.2, "A"), Turn(1.25, 2.4, "B"), Turn(2.4, 3.0, "A")])
    assert lines(found) == [("A", " is it ready"), ("B", " yes it is"), ("A", " good")]
    assert [(round(part.start, 2), round(part.end, 2)) for part in found] == [
        (0, 1.2),
        (1.2, 2.4),
        (2.4, 2.8),
    ]
    assert all(part.tokens == () and part.logprob == -0.2 for part in found)


def test_a_short_answer_keeps_its_own_turn() -> None:
    found = assign(
        [said("we could yes try it", 0.0)], [Turn(0.0, 0.8, "A"), Turn(0.8, 1.2, "B"), Turn(1.2, 3, "A")]
    )
    assert lines(found) == [("A", " we could"), ("B", " yes"), ("A", " try it")]


def test_words_said_at_once_are_marked_and_stay_with_their_speaker() -> None:
    turns = [Turn(0.0, 4.0, "A"), Turn(1.2, 2.0, "B")]
    (found,) = assign([said("one two three four five six", 0.0)], turns)
    assert found.speaker == "A"
    assert found.overlapped
    assert [word.overlapped for word in found.words] == [False, False, False, True, True, False]


def test_an_answer_said_at_once_goes_to_the_turn_that_it_is() -> None:
    turns = [Turn(0.0, 8.0, "A"), Turn(4.0, 4.5, "B")]
    found = assign([said("one two three four five six seven eight nine", 0.0), said("right", 4.05)], turns)
    assert lines(found)[-1] == ("B", " right")
    assert found[-1].overlapped


def test_a_word_between_turns_goes_to_the_nearest() -> None:
    turns = [Turn(0.0, 1.0, "A"), Turn(2.0, 3.0, "B")]
    assert lines(assign([said("well", 1.1), said("so", 1.6)], turns)) == [("A", " well"), ("B", " so")]


def test_far_from_all_turns_nobody_is_named() -> None:
    (found,) = assign([said("hello", 3.0 + 2 * REACH)], [Turn(0.0, 3.0, "A")])
    assert found.speaker is None
    assert assign([said("hello there", 0.0)], []) == [said("hello there", 0.0)]


def test_without_words_the_speaker_with_most_of_the_time_is_named() -> None:
    turns = [Turn(0.0, 2.0, "A"), Turn(1.5, 4.0, "B")]
    first, second, third, fourth = assign(
        [Segment(0.0, 1.0, " a"), Segment(1.0, 4.0, " b"), Segment(4.5, 5.0, " c"), Segment(9.0, 9.5, " d")],
        turns,
    )
    assert [each.speaker for each in (first, second, third, fourth)] == ["A", "B", "B", None]
    assert [each.overlapped for each in (first, second, third)] == [False, True, False]


times = st.floats(0, 60, allow_nan=False).map(lambda time: round(time, 2))
lengths = st.sampled_from([0.0, 0.02, 0.2, 0.5, 3.0])


@st.composite
def transcripts(draw: st.DrawFn) -> list[Segment]:
    found: list[Segment] = []
    at = 0.0
    for number in range(draw(st.integers(0, 6))):
        words = []
        for word in range(draw(st.integers(0, 6))):
            at += draw(lengths)
            end = at + draw(lengths)
            words.append(Word(at, end, f" {number}.{word}", probability=0.5))
            at = end
        start = words[0].start if words else at
        text = "".join(word.text for word in words) or f" segment {number}"
        found.append(Segment(start, at, text, words=tuple(words)))
    return found


@given(transcripts(), st.lists(st.tuples(times, lengths, st.sampled_from("ABC")), max_size=12))
def test_no_word_is_dropped_doubled_or_moved(
    segments: list[Segment], talked: list[tuple[float, float, str]]
) -> None:
    found = assign(segments, [Turn(start, start + length, name) for start, length, name in talked])
    before = [word for segment in segments for word in segment.words]
    after = [replace(word, speaker=None, overlapped=False) for segment in found for word in segment.words]
    assert after == before
    assert "".join(segment.text for segment in found) == "".join(segment.text for segment in segments)
    for segment in found:
        assert {word.speaker for word in segment.words} <= {segment.speaker}
        assert segment.start <= segment.end
