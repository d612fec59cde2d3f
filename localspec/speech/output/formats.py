"""The formats of a transcript by name, and a whole transcript in one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from localspec.errors import UnknownName
from localspec.speech.output.json import JsonWriter
from localspec.speech.output.subtitles import SrtWriter, VttWriter
from localspec.speech.output.text import TextWriter, TsvWriter
from localspec.speech.output.transcript import Transcript, Writer

FORMATS: Mapping[str, Callable[[], Writer]] = {
    "text": TextWriter,
    "srt": SrtWriter,
    "vtt": VttWriter,
    "json": JsonWriter,
    "tsv": TsvWriter,
}
ENDINGS = {"text": ".txt", "srt": ".srt", "vtt": ".vtt", "json": ".json", "tsv": ".tsv"}  # of file names


def writer(format: str) -> Writer:
    """Return a new writer; raises UnknownName for a format that does not exist."""
    if format not in FORMATS:
        raise UnknownName(f"Unknown format `{format}`", format, FORMATS)
    return FORMATS[format]()


def render(format: str, transcript: Transcript) -> str:
    """Return a whole transcript in a format; raises UnknownName for one that does not exist."""
    own = writer(format)
    middle = "".join(own.segment(segment) for segment in transcript.segments)
    return own.begin() + middle + own.end(transcript)
