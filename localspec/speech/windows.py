"""Cut audio into windows of at most 30 seconds that hold its speech, and skip what lies between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from localspec.speech.types import RATE, Window
from localspec.speech.voice import FRAME, VoiceDetector

LONGEST = 30 * RATE  # samples of a window
PAD = RATE // 5  # samples of silence that are kept before and after speech
# A model reads a window of any length as 30 seconds, so each window costs the same: pauses stay inside. Past
# long pauses Whisper tends to stop writing, or to invent text for them: those end a window.
PAUSE = 4 * RATE
VOICED, UNVOICED = 0.5, 0.35  # speech begins above the first, and ends below the second: Silero's defaults
SILENT_FRAMES = 8  # below UNVOICED end a region: 0.26 seconds
VOICED_FRAMES = 3  # at least, in a region: less is a click
SEARCH = 10 * RATE  # samples before its latest end in which a long region is cut
SMOOTH = 5  # frames over which a place to cut is judged
EARLY = 0.1  # what a cut so long before the latest end costs more: each further window costs a pass
FITS = (LONGEST - 2 * PAD) // FRAME  # frames of a region that fits into a window with its silence


def windows(blocks: Iterable[NDArray[np.float32]], detector: VoiceDetector | None = None) -> Iterator[Window]:
    """Yield the windows of a stream of mono samples at 16 kHz, as soon as each is complete.

    A window holds whole regions of voice with their pauses; a region that does not fit into 30 seconds is cut
    where it is quietest and least like a voice. Windows do not overlap, and each voice lies in exactly one,
    but for those cuts. Silence, noise and music between windows are skipped. Memory does not grow with the
    stream.
    """
    stream = _Stream(detector or VoiceDetector())
    finder, packer = _RegionFinder(stream), _Packer(stream)
    for block in blocks:
        stream.append(block)
        yield from _packed(finder, packer)
    stream.finish()
    yield from _packed(finder, packer)
    for region in finder.rest():
        yield from packer.add(region)
    yield from packer.rest()


def _packed(finder: _RegionFinder, packer: _Packer) -> Iterator[Window]:
    for region in finder.found():
        yield from packer.add(region)
    yield from packer.advance(finder.silent_since)


@dataclass(frozen=True)
class _Region:
    """A stretch of voice, in samples from the beginning."""

    start: int
    end: int


class _Stream:
    """The last samples of a stream and the voice probabilities of their frames, by absolute position."""

    def __init__(self, detector: VoiceDetector) -> None:
        self.voice = np.empty(0, np.float32)
        self.first = 0  # the frame where both begin
        self._samples = np.empty(0, np.float32)
        self._detector = detector

    @property
    def frames(self) -> int:
        """The number of frames that have been judged."""
        return self.first + len(self.voice)

    def append(self, block: NDArray[np.float32]) -> None:
        """Add samples, and judge the frames that they complete."""
        self._samples = np.concatenate([self._samples, block])
        new = self._samples[len(self.voice) * FRAME :]
        self.voice = np.concatenate([self.voice, self._detector.probabilities(new)])

    def finish(self) -> None:
        """Judge the last, incomplete frame too."""
        rest = len(self._samples) % FRAME
        if rest:
            padded = np.zeros(FRAME, np.float32)
            padded[:rest] = self._samples[-rest:]
            self.voice = np.concatenate([self.voice, self._detector.probabilities(padded)])

    def drop_before(self, sample: int) -> None:
        """Forget the frames that end before a sample."""
        count = min(max(sample // FRAME - self.first, 0), len(self.voice))
        self.first += count
        self.voice = self.voice[count:]
        self._samples = self._samples[count * FRAME :]

    def window(self, start: int, end: int) -> Window:
        """Return the samples from `start` to `end` as a window."""
        origin = self.first * FRAME
        return Window(start / RATE, self._samples[start - origin : end - origin].copy())

    def best_cut(self, first: int, last: int) -> int:
        """Return the frame from `first` to `last` at whose start a cut harms least."""
        voice = self.voice[first - self.first : last - self.first]
        samples = self._samples[(first - self.first) * FRAME : (last - self.first) * FRAME]
        loudness = np.sqrt((samples.reshape(-1, FRAME) ** 2).mean(axis=1))
        cost = voice + loudness / max(float(loudness.max()), 1e-9) + np.linspace(EARLY, 0, len(voice))
        smooth = np.convolve(cost, np.ones(SMOOTH) / SMOOTH, mode="valid")
        return first + SMOOTH // 2 + int(smooth.argmin())


class _RegionFinder:
    """Finds the stretches of voice among the judged frames of a stream, and cuts those that grow too long."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._next = 0  # the frame to look at
        self._start: int | None = None  # the frame where the open region began
        self._end = 0  # after its last voiced frame
        self._voiced = 0  # frames of it

    @property
    def silent_since(self) -> int | None:
        """The sample up to which all regions have been found; None while a region is open."""
        return self._next * FRAME if self._start is None else None

    def found(self) -> Iterator[_Region]:
        """Yield the regions that have ended."""
        while self._next < self._stream.frames:
            probability = float(self._stream.voice[self._next - self._stream.first])
            self._next += 1
            yield from self._looked_at(probability)

    def _looked_at(self, probability: float) -> Iterator[_Region]:
        if self._start is None:
            if probability < VOICED:
                return
            self._start, self._voiced = self._next - 1, 0
        if probability >= UNVOICED:
            self._end = self._next
            self._voiced += probability >= VOICED
        if self._next - self._end >= SILENT_FRAMES:
            yield from self.rest()
        elif self._end - self._start > FITS:
            latest = self._start + FITS
            cut = self._stream.best_cut(latest - SEARCH // FRAME, latest)
            yield _Region(self._start * FRAME, cut * FRAME)
            self._start = cut

    def rest(self) -> Iterator[_Region]:
        """Yield the region that is open, if it is more than a click, and close it."""
        start, self._start = self._start, None
        if start is not None and self._voiced >= VOICED_FRAMES:
            yield _Region(start * FRAME, self._end * FRAME)


@dataclass
class _Packer:
    """Packs regions, in their order, into windows."""

    stream: _Stream
    regions: list[_Region] = field(default_factory=list)  # of the window that is being packed
    before: int = -2 * PAD  # the end of the last region of the window before

    def add(self, region: _Region) -> Iterator[Window]:
        """Take a region into the window; yield the window before if it does not fit."""
        if self.regions and not self._fits(region):
            yield from self._packed(region.start)
        self.regions.append(region)

    def advance(self, now: int | None) -> Iterator[Window]:
        """Yield the window if a long pause has followed, up to sample `now`; forget what is not needed."""
        if now is None:
            return
        if self.regions and now - self.regions[-1].end > PAUSE:
            yield from self._packed(now)
        if not self.regions:
            self.stream.drop_before(now - PAD - FRAME)

    def rest(self) -> Iterator[Window]:
        """Yield the last window."""
        if self.regions:
            yield from self._packed(self.stream.frames * FRAME)

    def _fits(self, region: _Region) -> bool:
        pause = region.start - self.regions[-1].end
        return pause <= PAUSE and region.end + PAD - self._start() <= LONGEST

    def _start(self) -> int:
        """Return the first sample of the window: half of the silence before it belongs to the one before."""
        first = self.regions[0].start
        return max(0, first - min(PAD, (first - self.before) // 2))

    def _packed(self, following: int) -> Iterator[Window]:
        """Yield the window, with the silence that it has before sample `following`."""
        start, end = self._start(), self.regions[-1].end
        self.before = end
        self.regions = []
        yield self.stream.window(start, end + min(PAD, (following - end + 1) // 2))
        self.stream.drop_before(min(end, following - PAD))
