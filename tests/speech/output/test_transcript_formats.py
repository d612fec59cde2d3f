"""Transcripts in each format, letter by letter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import UnknownName
from localspec.speech.output.cues import COLUMNS, LINES, columns, cues, wrapped
from localspec.speech.output.formats import ENDINGS, FORMATS, render, writer
from localspec.speech.output.transcript import Transcript, clock
from localspec.speech.types import Segment, Word

PLAIN = Transcript(
    [
        Segment(0.0, 2.5, " Hello there.", tokens=(50364, 15947, 456, 13, 50489)),
        Segment(2.5, 3.0, "  "),
        Segment(3661.0, 3662.9996, " R&D: a <b> --> c\tand\nmore", speaker="Speaker 1"),
    ],
    audio="a.wav",
    language="en",
    model="whisper-base",
    draft="whisper-tiny",
    duration=3663.0004,
    stats={"windows": 2},
)


def said(text: str, start: float = 0.0, step: float = 0.25, **more: Any) -> Segment:
    """Return a segment whose words follow one another."""
    words = tuple(
        Word(start + number * step, start + (number + 1) * step, " " + word)
        for number, word in enumerate(text.split())
    )
    return Segment(start, words[-1].end, " " + text, words=words, **more)


def test_text() -> None:
    assert render("text", PLAIN) == "Hello there.\n[Speaker 1] R&D: a <b> --> c and more\n"


def test_tsv() -> None:
    expected = (
        "start\tend\ttext\n0\t2500\tHello there.\n3661000\t3663000\t[Speaker 1] R&D: a <b> --> c and more\n"
    )
    assert render("tsv", PLAIN) == expected


def test_srt() -> None:
    assert render("srt", PLAIN) == (
        "1\n00:00:00,000 --> 00:00:02,500\nHello there.\n\n"
        "2\n01:01:01,000 --> 01:01:03,000\n[Speaker 1] R&D: a <b> -> c and more\n\n"
    )


def test_vtt() -> None:
    assert render("vtt", PLAIN) == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:02.500\nHello there.\n\n"
        "01:01:01.000 --> 01:01:03.000\n<v Speaker 1>R&amp;D: a &lt;b&gt; --&gt; c and more\n\n"
    )


def test_json() -> None:
    found = json.loads(render("json", PLAIN))
    assert list(found) == [
        *("audio", "language", "duration", "task", "model", "draft", "text", "segments", "speakers", "stats"),
    ]
    assert (found["audio"], found["language"], found["duration"]) == ("a.wav", "en", 3663.0)
    assert (found["model"], found["draft"], found["speakers"]) == (
        "whisper-base",
        "whisper-tiny",
        ["Speaker 1"],
    )
    first, _, last = found["segments"]
    assert first == {
        "id": 0,
        "start": 0.0,
        "end": 2.5,
        "text": " Hello there.",
        "tokens": [50364, 15947, 456, 13, 50489],
        "temperature": 0.0,
        "avg_logprob": 0.0,
        "compression_ratio": 0.0,
        "no_speech_prob": 0.0,
    }
    assert last["speaker"] == "Speaker 1"
    assert found["stats"] == {"windows": 2}


def test_words_in_json() -> None:
    word = Word(0.12345, 0.5, " So", 0.98765, "Speaker 2", overlapped=True)
    segment = Segment(0.1, 0.5, " So", words=(word,), speaker="Speaker 2", overlapped=True)
    (found,) = json.loads(render("json", Transcript([segment])))["segments"]
    assert found["words"] == [
        {
            "word": " So",
            "start": 0.123,
            "end": 0.5,
            "probability": 0.988,
            "speaker": "Speaker 2",
            "overlapped": True,
        }
    ]
    assert (found["speaker"], found["overlapped"]) == ("Speaker 2", True)


@pytest.mark.parametrize(
    ("format", "empty"),
    [("text", ""), ("srt", ""), ("vtt", "WEBVTT\n\n"), ("tsv", "start\tend\ttext\n")],
)
def test_silence_is_an_empty_transcript(format: str, empty: str) -> None:
    assert render(format, Transcript([])) == empty
    assert render(format, Transcript([Segment(0, 1, " \n ")])) == empty
    assert json.loads(render("json", Transcript([])))["text"] == ""


def test_long_speech_is_cut_by_words() -> None:
    text = "The family of Dashwood had long been settled in Sussex and their estate was large and their home"
    assert render("srt", Transcript([said(text, start=10)])) == (
        "1\n00:00:10,000 --> 00:00:13,500\n"
        "The family of Dashwood had long been\nsettled in Sussex and their estate was\n\n"
        "2\n00:00:13,500 --> 00:00:14,500\nlarge and their home\n\n"
    )


def test_without_word_times_a_cue_has_the_lines_it_needs() -> None:
    text = "The family of Dashwood had long been settled in Sussex and their estate was large and their home"
    (cue,) = cues(Segment(0, 6, text))
    assert cue.lines == (
        "The family of Dashwood had long been",
        "settled in Sussex and their estate was",
        "large and their home",
    )


def test_a_label_takes_room_in_srt_only() -> None:
    segment = said("The family of Dashwood had long been here", speaker="Speaker 1")
    first = "[Speaker 1] The family of Dashwood had\nlong been here"
    assert render("srt", Transcript([segment])) == f"1\n00:00:00,000 --> 00:00:02,000\n{first}\n\n"
    assert "<v Speaker 1>The family of Dashwood had long been here\n" in render("vtt", Transcript([segment]))


def test_a_pause_ends_a_cue() -> None:
    words = (Word(0, 0.5, " Yes."), Word(4, 4.5, " No."))
    assert [cue.lines for cue in cues(Segment(0, 4.5, " Yes. No.", words=words))] == [("Yes.",), ("No.",)]


def test_a_cue_lasts() -> None:
    (cue,) = cues(Segment(1, 1, "Yes"))
    assert cue.end > cue.start


def test_a_long_word_is_cut_and_wide_letters_take_two_columns() -> None:
    assert wrapped("x" * 50) == ["x" * 42, "x" * 8]
    assert wrapped("ab " + "x" * 50) == ["ab " + "x" * 39, "x" * 11]
    assert wrapped("話" * 30) == ["話" * 21, "話" * 9]
    assert wrapped("e\u0301" * 42) == ["e\u0301" * 42]
    assert wrapped("", "[A] ") == wrapped("  ") == []


@given(st.text("ab <&>-\n話é", max_size=200), st.sampled_from(["", "[Speaker 1] "]))
def test_lines_lose_nothing_and_fit(text: str, label: str) -> None:
    lines = wrapped(text, label)
    assert all(columns(line) <= COLUMNS for line in lines)
    assert all(line.strip() for line in lines)
    if text.strip():
        assert "".join("".join(lines).split()) == "".join((label + text).split())


@given(
    st.lists(st.tuples(st.text("abc話", min_size=1, max_size=40), st.floats(0, 3)), min_size=1, max_size=30)
)
def test_every_word_is_in_one_cue(spoken: list[tuple[str, float]]) -> None:
    words, at = [], 0.0
    for text, pause in spoken:
        words.append(Word(at + pause, at + pause + 0.2, " " + text))
        at += pause + 0.2
    found = list(cues(Segment(0, at, "".join(word.text for word in words), words=tuple(words))))
    shown = "".join("".join(cue.lines) for cue in found).replace(" ", "")
    assert shown == "".join(word.text for word in words).replace(" ", "")
    assert all(len(cue.lines) <= LINES for cue in found)
    assert [cue.start for cue in found] == sorted(cue.start for cue in found)


def test_a_cue_cannot_be_forged() -> None:
    forged = "ok\n\n2\n00:00:01,000 --> 00:00:02,000\nforged"
    for format in ("srt", "vtt"):
        found = render(format, Transcript([Segment(0, 1, forged, speaker="a>\n\n-->")]))
        assert found.count("-->") == 1
        assert found.count("\n\n") == (2 if format == "vtt" else 1)


def test_pieces_are_the_whole() -> None:
    for format in FORMATS:
        own = writer(format)
        pieces = [own.begin(), *(own.segment(segment) for segment in PLAIN.segments), own.end(PLAIN)]
        assert "".join(pieces) == render(format, PLAIN)
    assert set(ENDINGS) == set(FORMATS)


def test_an_unknown_format() -> None:
    with pytest.raises(UnknownName, match="Unknown format `subrip`"):
        writer("subrip")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "00:00:00.000"), (59.9996, "00:01:00.000"), (-1, "00:00:00.000"), (360_000, "100:00:00.000")],
)
def test_times(seconds: float, shown: str) -> None:
    assert clock(seconds, ".") == shown
