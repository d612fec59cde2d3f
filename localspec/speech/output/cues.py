"""Cut segments into subtitles: at most two lines of 42 columns at once, where word times allow it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from localspec.speech.types import Segment, Word

COLUMNS, LINES = 42, 2  # as subtitles of films have them
SHORTEST = 0.02  # seconds of a cue: players drop one that ends where it begins
PAUSE = 1.0  # seconds between two words after which a new cue begins


@dataclass(frozen=True, slots=True)
class Cue:
    """Lines that are shown from `start` to `end`, in seconds."""

    start: float
    end: float
    lines: tuple[str, ...]
    speaker: str | None = None


def cues(segment: Segment, label: str = "") -> Iterator[Cue]:
    """Yield the cues of a segment; the first line of each leaves room for `label`.

    A segment without word times is one cue, of as many lines as it needs.
    """
    if not segment.words:
        yield from _cue(segment.start, segment.end, segment.text, segment.speaker, label)
        return
    for group in _groups(segment.words, label):
        text = "".join(word.text for word in group)
        yield from _cue(group[0].start, group[-1].end, text, segment.speaker, label)


def wrapped(text: str, label: str = "") -> list[str]:
    """Return a text as lines of at most COLUMNS, the first after `label`; a longer word is cut anywhere."""
    lines = [label]
    for word in text.split():
        between = " " if lines[-1] != label else ""
        if columns(lines[-1] + between + word) <= COLUMNS:
            lines[-1] += between + word
        elif columns(word) <= COLUMNS:
            lines.append(word)
        else:
            for letter in between + word:
                if columns(lines[-1] + letter) > COLUMNS:
                    lines.append("")
                lines[-1] += letter
    return [line.strip() for line in lines] if text.strip() else []


def columns(text: str) -> int:
    """Return how wide a text is: East Asian characters take two columns, combining marks none."""
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )


def _cue(start: float, end: float, text: str, speaker: str | None, label: str) -> Iterator[Cue]:
    if lines := wrapped(text, label):
        yield Cue(start, max(end, start + SHORTEST), tuple(lines), speaker)


def _groups(words: Iterable[Word], label: str) -> Iterator[list[Word]]:
    """Yield words that fit on the screen together, and are not far apart."""
    group: list[Word] = []
    for word in words:
        text = "".join(each.text for each in (*group, word))
        if group and (len(wrapped(text, label)) > LINES or word.start - group[-1].end > PAUSE):
            yield group
            group = []
        group.append(word)
    if group:
        yield group
