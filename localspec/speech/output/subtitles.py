"""A transcript as subtitles: SubRip (.srt) and WebVTT (.vtt)."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.speech.output.cues import Cue, cues
from localspec.speech.output.transcript import Transcript, clock, labelled, plain
from localspec.speech.types import Segment


class SrtWriter:
    """SubRip: numbered cues. The format has no escapes, so an arrow in a text becomes a shorter one."""

    def __init__(self) -> None:
        self._count = 0

    def begin(self) -> str:
        """Return nothing: the format has no head."""
        return ""

    def segment(self, segment: Segment) -> str:
        """Return the cues of a segment."""
        return "".join(self._cue(cue) for cue in cues(segment, labelled("", segment.speaker)))

    def end(self, transcript: Transcript) -> str:
        """Return nothing: the format has no foot."""
        return ""

    def _cue(self, cue: Cue) -> str:
        self._count += 1
        text = "\n".join(cue.lines).replace("-->", "->")
        return f"{self._count}\n{clock(cue.start, ',')} --> {clock(cue.end, ',')}\n{text}\n\n"


class VttWriter:
    """WebVTT: cues whose speaker is a voice tag (W3C, WebVTT 1, section 4.2.2)."""

    def begin(self) -> str:
        """Return the signature of the format."""
        return "WEBVTT\n\n"

    def segment(self, segment: Segment) -> str:
        """Return the cues of a segment."""
        return "".join(_vtt_cues(segment))

    def end(self, transcript: Transcript) -> str:
        """Return nothing: the format has no foot."""
        return ""


def _vtt_cues(segment: Segment) -> Iterator[str]:
    for cue in cues(segment):
        voice = f"<v {_escaped(plain(cue.speaker))}>" if cue.speaker else ""
        text = "\n".join(map(_escaped, cue.lines))
        yield f"{clock(cue.start, '.')} --> {clock(cue.end, '.')}\n{voice}{text}\n\n"


def _escaped(text: str) -> str:
    """Return a text without characters that mean something in WebVTT; an arrow would begin a cue."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
