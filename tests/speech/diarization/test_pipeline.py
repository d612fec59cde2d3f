"""Turns come from what the models hear; here the models hear tones."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.errors import BadValue
from localspec.speech.diarization.fbank import LOWEST, fbank
from localspec.speech.diarization.models import Models
from localspec.speech.diarization.pipeline import diarize, turns
from localspec.speech.diarization.segmentation_graph import FRAMES, SEEN, SPEAKERS, STEP
from localspec.speech.diarization.voices import HOP, listen
from localspec.speech.types import RATE, Turn

BINS = {"low": 5, "middle": 17, "high": 51}  # of the spectrum of a frame
HERTZ = {name: at * RATE / STEP for name, at in BINS.items()}
Turns = list[tuple[str, float, float]]


class TonesAreVoices(Models):
    """Takes each of three tones for a speaker; the first in a chunk is its first local speaker."""

    def __init__(self) -> None:
        self.read = 0

    def classes(self, chunks: NDArray[np.float32]) -> NDArray[np.uint8]:
        return np.stack([self._chunk(chunk) for chunk in chunks])

    def _chunk(self, chunk: NDArray[np.float32]) -> NDArray[np.uint8]:
        padded = np.pad(chunk, (0, SEEN))
        windows = np.lib.stride_tricks.sliding_window_view(padded, STEP)[(SEEN - STEP) // 2 :: STEP][:FRAMES]
        spectrum = np.abs(np.fft.rfft(windows * np.hanning(STEP), axis=1))
        active = spectrum[:, list(BINS.values())] > 0.7
        first = [int(row.argmax()) if row.any() else FRAMES for row in active.T]
        order = sorted(range(3), key=lambda at: first[at])
        local = [tuple(order.index(at) for at in order if row[at])[:2] for row in active]
        return np.array([SPEAKERS.index(tuple(sorted(talking))) for talking in local], np.uint8)

    def vectors(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        self.read += len(features)
        mel = 1127 * np.log(1 + np.array([LOWEST, *HERTZ.values(), RATE / 2]) / 700)
        bands = (mel[1:-1] - mel[0]) / (mel[-1] - mel[0]) * 81 - 1
        trembling = np.stack([np.convolve(row, np.ones(9), "same") for row in features.std(axis=1)])
        nearest = np.abs(trembling.argmax(axis=1)[:, None] - bands).argmin(axis=1)
        return np.eye(3, dtype=np.float32)[nearest]


def recording(said: Turns, seconds: float) -> NDArray[np.float32]:
    """Return tones that tremble five times a second, over a little noise."""
    samples = np.random.default_rng(0).normal(scale=1e-3, size=round(seconds * RATE)).astype(np.float32)
    for name, start, end in said:
        first, last = round(start * RATE), round(end * RATE)
        trembling = 0.525 + 0.475 * np.sin(2 * np.pi * 5 * np.arange(last - first) / RATE)
        sine = 0.4 * np.sin(2 * np.pi * HERTZ[name] * np.arange(last - first) / RATE)
        samples[first:last] += (sine * trembling).astype(np.float32)
    return samples


def found(
    said: Turns, seconds: float, speakers: tuple[int, int] | None = None, block: float = 10.0
) -> list[Turn]:
    samples = recording(said, seconds)
    size = round(block * RATE)
    blocks = (samples[at : at + size] for at in range(0, len(samples), size))
    return turns(listen(blocks, TonesAreVoices()), speakers)


def check(own: list[Turn], said: Turns) -> None:
    """Check that turns are the ones said, with names in the order of their appearance."""
    names: dict[str, str] = {}
    for name, _, _ in sorted(said, key=lambda turn: turn[1]):
        names.setdefault(name, f"Speaker {len(names) + 1}")
    expected = sorted((start, end, names[name]) for name, start, end in said)
    assert [turn.speaker for turn in own] == [name for _, _, name in expected]
    for turn, (start, end, _) in zip(own, expected, strict=True):
        assert turn.start == pytest.approx(start, abs=0.06)
        assert turn.end == pytest.approx(end, abs=0.06)


TALKS: dict[str, tuple[Turns, float]] = {
    "one": ([("low", 1.0, 4.0)], 6.0),
    "less than a chunk": ([("high", 0.5, 1.5)], 2.0),
    "two in turn": ([("low", 1.0, 4.0), ("high", 4.5, 8.0), ("low", 8.5, 21.0), ("high", 21.5, 24.0)], 25.0),
    "three": (
        [("middle", 2.0, 9.0), ("low", 10.0, 19.0), ("high", 20.0, 29.0), ("middle", 30.0, 33.0)],
        40.0,
    ),
    "all the time": ([("low", 0.0, 35.0)], 35.0),
    "at once": ([("low", 1.0, 12.0), ("high", 8.0, 20.0), ("low", 22.0, 30.0), ("high", 24.0, 25.0)], 31.0),
    "long silence": ([("low", 1.0, 5.0), ("high", 70.0, 75.0), ("low", 80.0, 84.0)], 90.0),
}


@pytest.mark.parametrize("name", TALKS)
@pytest.mark.parametrize("given", [True, False])
def test_turns_are_found(name: str, given: bool) -> None:
    said, seconds = TALKS[name]
    count = len({speaker for speaker, _, _ in said})
    check(found(said, seconds, (count, count) if given else None), said)


@pytest.mark.parametrize("block", [0.5, 3.3, 1000.0])
def test_the_length_of_blocks_changes_nothing_for_turns(block: float) -> None:
    said, seconds = TALKS["at once"]
    assert found(said, seconds, block=block) == found(said, seconds)


@pytest.mark.parametrize("seconds", [0.0, 0.01, 1.0, 10.0, 30.0, HOP / RATE, 2 * HOP / RATE])
def test_silence_has_no_turns(seconds: float) -> None:
    assert found([], seconds) == []
    assert found([], seconds, (2, 2)) == []


def test_progress_reaches_the_end() -> None:
    told: list[float] = []
    samples = recording([("low", 1.0, 4.0)], 33.0)
    heard = listen([samples], TonesAreVoices(), told.append)
    assert told == sorted(told)
    assert told[-1] == pytest.approx(33.0)
    assert heard.seconds == pytest.approx(33.0)


def test_a_file_is_read(tmp_path: Path) -> None:
    said, seconds = TALKS["two in turn"]
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((recording(said, seconds).clip(-1, 1) * 32767).astype("<i2").tobytes())
    check(diarize(tmp_path / "a.wav", TonesAreVoices(), (2, 2)), said)
    with pytest.raises(BadValue, match="No such file"):
        diarize(tmp_path / "b.wav", TonesAreVoices())


def test_filter_banks_are_as_defined() -> None:
    samples = recording([("low", 0.0, 0.5)], 0.5)
    own = fbank(samples)
    assert own.shape == (48, 80)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)
    edges = np.linspace(1127 * np.log(1 + 20 / 700), 1127 * np.log(1 + 8000 / 700), 82)
    bins = 1127 * np.log(1 + np.arange(256) * RATE / 512 / 700)
    for at in (0, 20, 47):
        frame = samples[at * 160 : at * 160 + 400].astype(np.float64)
        frame = frame - frame.mean()
        frame = (frame - 0.97 * np.concatenate([frame[:1], frame[:-1]])) * hann**0.85
        power = np.abs(np.fft.rfft(frame, 512))[:256] ** 2
        for band in (0, 30, 79):
            low, middle, high = edges[band : band + 3]
            sides = np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle))
            triangle = np.maximum(sides, 0)
            assert own[at, band] == pytest.approx(np.log(max(power @ triangle, 1.1921e-7)), abs=1e-2)
    assert fbank(samples[:399]).shape == (0, 80)
