"""What the models hear in a recording: which local speakers talk in each chunk, and how each sounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.speech.diarization.embedding_graph import FRAMES as WINDOW
from localspec.speech.diarization.fbank import fbank, middle
from localspec.speech.diarization.models import Models
from localspec.speech.diarization.segmentation_graph import FRAMES, SAMPLES, SEEN, SPEAKERS, STEP
from localspec.speech.types import RATE

HOP = 296 * STEP  # samples from one chunk to the next: half a chunk, so that each moment is heard twice
LOCAL = 3  # speakers of a chunk
ACTIVE = np.array([[speaker in talking for speaker in range(LOCAL)] for talking in SPEAKERS])
BATCH = 4  # chunks
# All in frames of 10 ms:
CLEAN = 25  # of a voice alone, else what it says together with others is taken too
SHORTEST = 10  # a voice shorter than this has no sound of its own
PAUSE = 30  # ends a run of one voice
RUN = 60  # a shorter run is left out where a longer one exists
OVERLAP = 100  # of two windows


@dataclass(frozen=True)
class Voice:
    """A window of up to two seconds of one local speaker: where it is, and how it sounds."""

    chunk: int
    local: int
    start: int  # frames of the chunk
    end: int
    length: int  # frames of 10 ms
    vector: NDArray[np.float32]


@dataclass(frozen=True)
class Heard:
    """A recording as the models hear it: the class of each frame [chunks, 589], and windows of its voices."""

    classes: NDArray[np.uint8]
    voices: list[Voice]
    seconds: float


def listen(
    blocks: Iterable[NDArray[np.float32]], models: Models, heard: Callable[[float], None] = lambda _: None
) -> Heard:
    """Return what the models hear in a stream of mono samples at 16 kHz.

    `heard` is called with the seconds read. Memory grows by 2 MB for each hour.
    """
    classes, voices, count = [np.zeros((0, FRAMES), np.uint8)], [], 0
    for chunks, total in _batches(blocks):
        padded = np.stack([np.pad(chunk, (0, SAMPLES - len(chunk))) for chunk in chunks])
        found = models.classes(padded)
        for chunk, frames in zip(chunks, found, strict=True):
            voices += _voices(count, chunk, ACTIVE[frames], models)
            count += 1
        classes.append(found)
        heard(total / RATE)
    return Heard(np.concatenate(classes), voices, total / RATE if count else 0.0)


def _batches(blocks: Iterable[NDArray[np.float32]]) -> Iterator[tuple[list[NDArray[np.float32]], int]]:
    """Yield overlapping chunks, some at a time, with the samples up to their end; the last is shorter."""
    kept, first, chunks = np.zeros(0, np.float32), 0, []
    for block in blocks:
        kept = np.concatenate([kept, block])
        while len(kept) > SAMPLES:
            chunks.append(kept[:SAMPLES].copy())
            kept, first = kept[HOP:], first + HOP
            if len(chunks) == BATCH:
                yield chunks, first - HOP + SAMPLES
                chunks = []
    if len(kept):
        chunks.append(kept)
    if chunks:
        yield chunks, first + len(kept)


def _voices(
    number: int, chunk: NDArray[np.float32], active: NDArray[np.bool_], models: Models
) -> list[Voice]:
    """Return the windows of the voices of a chunk; `active` [589, 3] tells who talks."""
    features = fbank(chunk)
    place = (
        np.rint((middle(np.arange(len(features))) * RATE - SEEN / 2) / STEP).clip(0, FRAMES - 1).astype(int)
    )
    alone = active.sum(axis=1) == 1
    windows: list[tuple[int, NDArray[np.intp]]] = []
    for local in range(LOCAL):
        windows += [(local, frames) for frames in _windows(active[:, local][place], alone[place])]
    if not windows:
        return []
    vectors = models.vectors(np.stack([_normed(features[frames]) for _, frames in windows]))
    return [
        Voice(number, local, int(place[frames[0]]), int(place[frames[-1]]) + 1, len(frames), vector)
        for (local, frames), vector in zip(windows, vectors, strict=True)
    ]


def _windows(active: NDArray[np.bool_], alone: NDArray[np.bool_]) -> Iterator[NDArray[np.intp]]:
    """Yield the frames of windows of one voice, of those where it talks alone if they are enough."""
    clean = active & alone
    frames = np.flatnonzero(clean if clean.sum() >= CLEAN else active)
    if len(frames) < SHORTEST:
        return
    runs = np.split(frames, np.flatnonzero(np.diff(frames) > PAUSE) + 1)
    for run in [run for run in runs if len(run) >= RUN] or [frames]:
        count = 1 + max(0, -(-(len(run) - WINDOW) // OVERLAP))
        for start in np.linspace(0, max(0, len(run) - WINDOW), count).astype(int):
            yield run[start : start + WINDOW]


def _normed(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return features without their mean over time, repeated up to the length of a window."""
    return np.resize(features - features.mean(axis=0), (WINDOW, features.shape[1]))
