"""Give the words of a transcript to the speakers that say them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from localspec.speech.types import Segment, Turn, Word

REACH = 1.0  # seconds: a word outside all turns goes to the nearest one within
ALIKE = 0.5  # what a segment and a turn share of their common time, to be the same utterance
TOGETHER = (
    0.3  # seconds in which two speakers talk at once, about a word: a segment without words is overlapped
)


def assign(segments: Sequence[Segment], turns: Sequence[Turn]) -> list[Segment]:
    """Return segments with their speakers; one that several speakers say is split where they change.

    Each word goes to the speaker who talks at its middle, so that a short answer inside of a longer sentence
    keeps its own turn. While several talk, words are marked as overlapped, and go to the speaker whose turn
    is the segment, else to that of the word before. Outside of all turns the nearest one within a second
    counts; beyond, a segment has no speaker. A part of a segment has the times and the text of its words, and
    no tokens. No word is dropped, doubled or moved.
    """
    timeline = _Timeline(turns)
    found: list[Segment] = []
    for segment in segments:
        found += _split(segment, timeline) if segment.words else [_whole(segment, timeline)]
    return found


class _Timeline:
    """The turns of a recording, to be asked who talks when."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = sorted(turns, key=lambda turn: (turn.start, turn.end, turn.speaker))
        self._starts = np.array([turn.start for turn in self.turns])
        self._ends = np.array([turn.end for turn in self.turns])

    def at(self, time: float) -> list[Turn]:
        """Return the turns in which somebody talks at a time, in the order of their start."""
        inside = (self._starts <= time) & (time < self._ends)
        return [self.turns[place] for place in np.flatnonzero(inside)]

    def nearest(self, start: float, end: float) -> Turn | None:
        """Return the turn nearest to a stretch of time, None beyond REACH."""
        if not self.turns:
            return None
        gaps = np.maximum(np.maximum(self._starts - end, start - self._ends), 0.0)
        place = int(gaps.argmin())
        return self.turns[place] if gaps[place] <= REACH else None

    def talked(self, start: float, end: float) -> dict[str, float]:
        """Return the seconds that each speaker talks in a stretch of time."""
        shared = np.minimum(self._ends, end) - np.maximum(self._starts, start)
        seconds: dict[str, float] = {}
        for place in np.flatnonzero(shared > 0):
            speaker = self.turns[place].speaker
            seconds[speaker] = seconds.get(speaker, 0.0) + float(shared[place])
        return seconds

    def together(self, start: float, end: float) -> float:
        """Return the seconds of a stretch of time in which at least two speakers talk."""
        inside = np.flatnonzero((self._starts < end) & (self._ends > start))
        edges = sorted({start, end, *self._starts[inside], *self._ends[inside]})
        pieces = [(max(one, start), min(other, end)) for one, other in zip(edges, edges[1:], strict=False)]
        return sum(
            float(other - one)
            for one, other in pieces
            if other > one and len(_speakers(self.at((one + other) / 2))) > 1
        )


def _speakers(turns: Sequence[Turn]) -> set[str]:
    return {turn.speaker for turn in turns}


def _whole(segment: Segment, timeline: _Timeline) -> Segment:
    """Return a segment without words with the speaker that talks most in it."""
    seconds = timeline.talked(segment.start, segment.end)
    near = timeline.nearest(segment.start, segment.end)
    speaker = near.speaker if near else None
    if seconds:
        speaker = max(seconds, key=lambda name: seconds[name])
    overlapped = timeline.together(segment.start, segment.end) >= TOGETHER
    return replace(segment, speaker=speaker, overlapped=overlapped)


def _split(segment: Segment, timeline: _Timeline) -> list[Segment]:
    """Return the parts of a segment that one speaker each says."""
    words: list[Word] = []
    for word in segment.words:
        words.append(_given(word, segment, words[-1].speaker if words else None, timeline))
    words = _completed(words)
    parts = [list(part) for _, part in groupby(words, key=lambda word: word.speaker)]
    if len(parts) == 1:
        return [_of(replace(segment, words=tuple(words)))]
    return [
        _of(
            replace(
                segment,
                start=part[0].start,
                end=max(part[0].start, part[-1].end),
                text="".join(word.text for word in part),
                tokens=(),
                words=tuple(part),
            )
        )
        for part in parts
    ]


def _of(segment: Segment) -> Segment:
    """Return a segment with the speaker of its words."""
    overlapped = any(word.overlapped for word in segment.words)
    return replace(segment, speaker=segment.words[0].speaker, overlapped=overlapped)


def _given(word: Word, segment: Segment, before: str | None, timeline: _Timeline) -> Word:
    """Return a word with its speaker; `before` says the word before it."""
    talking = timeline.at((word.start + word.end) / 2)
    names = _speakers(talking)
    if not talking:
        near = timeline.nearest(word.start, word.end)
        return replace(word, speaker=near.speaker if near else None, overlapped=False)
    if len(names) == 1:
        return replace(word, speaker=talking[0].speaker, overlapped=False)
    best = max(talking, key=lambda turn: _likeness(segment, turn))
    if _likeness(segment, best) < ALIKE:
        seconds = timeline.talked(word.start, word.end)
        most = max(seconds.get(name, 0.0) for name in names)
        longest = [turn for turn in talking if seconds.get(turn.speaker, 0.0) >= most]
        best = next((turn for turn in talking if turn.speaker == before), longest[0])
    return replace(word, speaker=best.speaker, overlapped=True)


def _likeness(segment: Segment, turn: Turn) -> float:
    """Return the time that a segment and a turn share, as a part of the time of both (Jaccard 1901)."""
    shared = min(segment.end, turn.end) - max(segment.start, turn.start)
    return max(0.0, shared) / max(max(segment.end, turn.end) - min(segment.start, turn.start), 1e-9)


def _completed(words: list[Word]) -> list[Word]:
    """Return words with a speaker each, as far as one has: that of the word before, else of the next."""
    known = [word.speaker for word in words if word.speaker is not None]
    last = known[0] if known else None
    found: list[Word] = []
    for word in words:
        last = last if word.speaker is None else word.speaker
        found.append(replace(word, speaker=last))
    return found
