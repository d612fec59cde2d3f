"""From a recording to the turns of its speakers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.speech import audio
from localspec.speech.diarization import clustering
from localspec.speech.diarization.models import Models
from localspec.speech.diarization.segmentation_graph import FRAMES, SEEN, STEP
from localspec.speech.diarization.voices import ACTIVE, HOP, LOCAL, Heard, Voice, listen
from localspec.speech.types import RATE, Turn

FADE = 60  # frames at each end of a chunk that count less: the model knows only one side of them
EDGE = 0.1  # what the outermost frame counts


def diarize(
    path: Path,
    models: Models,
    speakers: tuple[int, int] | None = None,
    heard: Callable[[float], None] = lambda _: None,
) -> list[Turn]:
    """Return who speaks when in a file: turns in the order of their start, which may overlap.

    `speakers` are the least and the most to tell apart, None: as many as sound different. They are called
    `Speaker 1` and so on, as they appear. A file without speech has no turns. `heard` is called with the
    seconds read so far. Raises what `audio.blocks` raises. Memory grows by about 5 MB for each hour.
    """
    return turns(listen(audio.blocks(path), models, heard), speakers)


def turns(recording: Heard, speakers: tuple[int, int] | None = None) -> list[Turn]:
    """Return the turns of a recording that the models have heard.

    Each moment is heard in two chunks. They vote on how many speak, and on who these are, as in pyannote's
    pipeline (Bredin 2023); unlike there, each window of two seconds goes to the speaker that it sounds like,
    since a chunk's local speaker may be two alike voices.
    """
    if not recording.voices:
        return []
    vectors = np.stack([voice.vector for voice in recording.voices])
    seconds = np.array([voice.length / 100 for voice in recording.voices])
    centers = clustering.centers(vectors, seconds, speakers)
    active = _votes(recording, vectors @ centers.T)
    found = [turn for at in range(len(centers)) for turn in _stretches(active[:, at], at, recording.seconds)]
    return _named(sorted(found))


def _votes(recording: Heard, scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return who speaks [frames, speakers]; `scores` [voices, speakers] tell how each voice sounds."""
    chunks = len(recording.classes)
    hop, speakers = HOP // STEP, scores.shape[1]
    total = (chunks - 1) * hop + FRAMES
    votes, counts, weights = np.zeros((total, speakers), np.float32), np.zeros(total), np.zeros(total)
    ends = np.minimum(np.arange(1, FRAMES + 1), np.arange(FRAMES, 0, -1))
    weight = np.minimum(1, ends / FADE) * (1 - EDGE) + EDGE
    of_chunk: list[list[int]] = [[] for _ in range(chunks)]
    for at, voice in enumerate(recording.voices):
        of_chunk[voice.chunk].append(at)
    for chunk, classes in enumerate(recording.classes):
        span = slice(chunk * hop, chunk * hop + FRAMES)
        active = ACTIVE[classes]
        weights[span] += weight
        counts[span] += active.sum(axis=1) * weight
        members = of_chunk[chunk]
        if members:
            voices = [recording.voices[at] for at in members]
            votes[span] += _talking(active, voices, scores[members]) * weight[:, None]
    speaking = np.rint(counts / weights)
    ranks = (-votes).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return (ranks < speaking[:, None]) & (votes > 0)


def _talking(
    active: NDArray[np.bool_], voices: list[Voice], scores: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return who of all speakers talks [frames, speakers] in a chunk, from its local speakers [frames, 3].

    A voice alone is who it sounds like in the windows around; local speakers that talk at once are different
    speakers, each who it sounds like on the whole.
    """
    whole = _assigned(voices, scores)
    together = active.sum(axis=1) > 1
    talking = np.zeros((FRAMES, scores.shape[1]), np.float32)
    for local, usual in whole.items():
        sums = np.zeros((FRAMES, scores.shape[1]), np.float32)
        for voice, score in zip(voices, scores, strict=True):
            if voice.local == local:
                sums[voice.start : voice.end] += 1 + score  # above 0: each window that covers a frame counts
        known = sums.any(axis=1) & ~together
        speaker = np.where(known, sums.argmax(axis=1), usual)
        frames = np.flatnonzero(active[:, local])
        talking[frames, speaker[frames]] = 1
    return talking


def _assigned(voices: list[Voice], scores: NDArray[np.float32]) -> dict[int, int]:
    """Return the speaker of each local speaker, different ones if they suffice, that fit best together."""
    locals_ = sorted({voice.local for voice in voices})
    own = np.array([voice.local for voice in voices])
    means = np.stack([scores[own == local].mean(axis=0) for local in locals_])
    if len(locals_) > means.shape[1]:
        return dict(zip(locals_, map(int, means.argmax(axis=1)), strict=True))
    # Of many speakers, only the few that each local one is nearest to can be part of the best choice.
    near = sorted({int(at) for row in means for at in np.argsort(-row)[:LOCAL]})
    rows = range(len(locals_))
    best = max(permutations(near, len(locals_)), key=lambda chosen: means[rows, chosen].sum())
    return dict(zip(locals_, best, strict=True))


def _stretches(active: NDArray[np.bool_], speaker: int, seconds: float) -> list[tuple[float, float, int]]:
    """Return the start, end and speaker of each stretch of frames in which one talks."""
    edges = np.flatnonzero(np.diff(active.astype(np.int8), prepend=0, append=0))
    # A frame stands for the samples around the middle of what it sees.
    times = ((edges - 0.5) * STEP + SEEN / 2) / RATE
    times[edges == 0] = 0
    clipped = np.minimum(times, seconds)
    pairs = zip(clipped[::2], clipped[1::2], strict=True)
    return [(float(start), float(end), speaker) for start, end in pairs if end > start]


def _named(stretches: list[tuple[float, float, int]]) -> list[Turn]:
    """Return turns with the speakers named as they appear."""
    names: dict[int, str] = {}
    for _, _, speaker in stretches:
        names.setdefault(speaker, f"Speaker {len(names) + 1}")
    return [Turn(start, end, names[speaker]) for start, end, speaker in stretches]
