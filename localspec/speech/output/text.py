"""A transcript as plain text, and as a table of times."""

from __future__ import annotations

from localspec.speech.output.transcript import Transcript, labelled, plain
from localspec.speech.types import Segment


class TextWriter:
    """One line for each segment, after its speaker if there are several."""

    def begin(self) -> str:
        """Return nothing: a text has no head."""
        return ""

    def segment(self, segment: Segment) -> str:
        """Return the line of a segment."""
        text = plain(segment.text)
        return f"{labelled(text, segment.speaker)}\n" if text else ""

    def end(self, transcript: Transcript) -> str:
        """Return nothing: a text has no foot."""
        return ""


class TsvWriter:
    """A table as OpenAI's `whisper` writes it: start and end in milliseconds, and the text."""

    def begin(self) -> str:
        """Return the titles of the columns."""
        return "start\tend\ttext\n"

    def segment(self, segment: Segment) -> str:
        """Return the row of a segment."""
        text = plain(segment.text)
        start, end = (round(max(time, 0.0) * 1000) for time in (segment.start, segment.end))
        return f"{start}\t{end}\t{labelled(text, segment.speaker)}\n" if text else ""

    def end(self, transcript: Transcript) -> str:
        """Return nothing: a table has no foot."""
        return ""
