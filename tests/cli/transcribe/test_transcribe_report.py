"""The statistics of a transcript, as a line and as values."""

from __future__ import annotations

from localspec.cli.transcribe.report import stats_line, stats_values
from localspec.core.stats import SourceCounts
from localspec.speech.transcriber import SpeechStats

STATS = SpeechStats(
    audio=30.0,
    tokens=100,
    passes=60,
    drafted=90,
    accepted=40,
    seconds=1.5,
    sources={"self": SourceCounts(70, 30, 0.0123456), "copies": SourceCounts(20, 10, 0.001)},
)


def test_guesses_are_counted_by_source() -> None:
    assert stats_line(STATS, "en", "base") == (
        "English, 30.0 s of audio in 1.5 s (20.0 x), 100 tokens of base in 60 passes, "
        "30 of 70 guesses of self and 10 of 20 guesses of copies accepted (44%)"
    )
    assert stats_values(STATS)["sources"] == {
        "self": {"drafted": 70, "accepted": 30, "seconds": 0.012},
        "copies": {"drafted": 20, "accepted": 10, "seconds": 0.001},
    }


def test_without_guesses_no_source_is_named() -> None:
    assert "no draft" in stats_line(SpeechStats(tokens=3, passes=3), None, "base")
    assert stats_values(SpeechStats())["sources"] == {}
