"""A transcript of one file, and what its formats share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from localspec.speech.types import Segment


@dataclass(frozen=True, slots=True)
class Transcript:
    """The segments of a file, and how they came about; `duration` is in seconds, None if it is unknown."""

    segments: Sequence[Segment]
    audio: str = ""  # the file, as the user named it
    language: str | None = None
    task: str = "transcribe"
    model: str = ""
    draft: str | None = None
    duration: float | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All that is said, as the model writes it."""
        return "".join(segment.text for segment in self.segments).strip()


class Writer(Protocol):
    """Writes a transcript piece by piece; the pieces joined are the file."""

    def begin(self) -> str:
        """Return what comes before the first segment."""

    def segment(self, segment: Segment) -> str:
        """Return a segment, empty for one without text."""

    def end(self, transcript: Transcript) -> str:
        """Return what comes after the last segment."""


def clock(seconds: float, point: str) -> str:
    """Return `00:01:02.345`, with `point` before the milliseconds; hours have two digits or more."""
    minutes, thousandths = divmod(round(max(seconds, 0.0) * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, thousandths = divmod(thousandths, 1000)
    return f"{hours:02}:{minutes:02}:{whole:02}{point}{thousandths:03}"


def plain(text: str) -> str:
    """Return a text as one line, without blanks around it."""
    return " ".join(text.split())


def labelled(text: str, speaker: str | None) -> str:
    """Return a text after its speaker in brackets, if one is known."""
    return f"[{plain(speaker)}] {text}" if speaker else text
