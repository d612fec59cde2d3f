"""A transcript as JSON: segments with the keys of OpenAI's `whisper`, words, and what a draft gained."""

from __future__ import annotations

import json
from typing import Any

from localspec.speech.output.transcript import Transcript
from localspec.speech.types import Segment, Word

PLACES = 3  # decimals of seconds and probabilities


class JsonWriter:
    """One JSON object, which is written at the end: its first keys are known only then."""

    def begin(self) -> str:
        """Return nothing."""
        return ""

    def segment(self, segment: Segment) -> str:
        """Return nothing: all segments are in the object."""
        return ""

    def end(self, transcript: Transcript) -> str:
        """Return the object, indented."""
        return json.dumps(values(transcript), ensure_ascii=False, indent=2) + "\n"


def values(transcript: Transcript) -> dict[str, Any]:
    """Return a transcript as plain values; times are in seconds."""
    segments = transcript.segments
    speakers = sorted({segment.speaker for segment in segments if segment.speaker})
    found: dict[str, Any] = {
        "audio": transcript.audio,
        "language": transcript.language,
        "duration": _rounded(transcript.duration) if transcript.duration is not None else None,
        "task": transcript.task,
        "model": transcript.model,
        "draft": transcript.draft,
        "text": transcript.text,
        "segments": [_segment(number, segment) for number, segment in enumerate(segments)],
    }
    if speakers:
        found["speakers"] = speakers
    return found | {"stats": dict(transcript.stats)}


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": number,
        "start": _rounded(segment.start),
        "end": _rounded(segment.end),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": _rounded(segment.temperature),
        "avg_logprob": _rounded(segment.logprob),
        "compression_ratio": _rounded(segment.compression),
        "no_speech_prob": _rounded(segment.no_speech),
    }
    if segment.words:
        found["words"] = [_word(word) for word in segment.words]
    return found | _speaker(segment)


def _word(word: Word) -> dict[str, Any]:
    found = {
        "word": word.text,
        "start": _rounded(word.start),
        "end": _rounded(word.end),
        "probability": _rounded(word.probability),
    }
    return found | _speaker(word)


def _speaker(said: Segment | Word) -> dict[str, Any]:
    """Return who says it, and whether another speaker talks at the same time, as far as they are known."""
    found: dict[str, Any] = {"speaker": said.speaker} if said.speaker else {}
    return found | ({"overlapped": True} if said.overlapped else {})


def _rounded(number: float) -> float:
    return round(float(number), PLACES)
