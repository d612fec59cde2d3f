"""The statistics of a transcript, as a line and as values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localspec.speech.languages import name_of

if TYPE_CHECKING:
    from localspec.speech.transcriber import SpeechStats

PLACES = 3  # decimals of seconds


def stats_values(stats: SpeechStats) -> dict[str, Any]:
    """Return the statistics of a file as plain values."""
    values: dict[str, Any] = _rounded(asdict(stats))
    return values


def stats_line(stats: SpeechStats, language: str | None, model: str) -> str:
    """Return what a file took, such as "English, 24.7 s of audio in 1.9 s (13.0 x) ..."."""
    parts = [f"{stats.audio:.1f} s of audio in {stats.seconds:.1f} s"]
    if stats.seconds and stats.audio:
        parts[0] += f" ({stats.audio / stats.seconds:.1f} x)"
    if language:
        parts.insert(0, name_of(language))
    parts.append(f"{stats.tokens:,} tokens of {model} in {stats.passes:,} passes")
    if stats.drafted:
        guesses = " and ".join(
            f"{counts.accepted:,} of {counts.drafted:,} guesses of {name}"
            for name, counts in stats.sources.items()
        )
        parts.append(f"{guesses} accepted ({stats.accepted / stats.drafted:.0%})")
    else:
        parts.append("no draft")
    times = {
        "encoder": stats.encoder_seconds,
        "decoder": stats.decode_seconds,
        "draft": stats.draft_seconds,
        "word times": stats.align_seconds,
    }
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items() if seconds >= 0.005)
    return "; ".join([", ".join(parts), *([spent] if spent else [])])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, PLACES) if isinstance(value, float) else value
