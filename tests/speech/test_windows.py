"""Windows hold all that is said, and little else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from speech.conftest import tone

from localspec.speech.types import RATE, Window
from localspec.speech.voice import FRAME, VoiceDetector
from localspec.speech.windows import PAD, PAUSE, windows

Samples = NDArray[np.float32]


class LoudIsVoice(VoiceDetector):
    """Takes every sound for a voice."""

    def __init__(self) -> None:
        pass

    def probabilities(self, samples: Samples) -> Samples:
        frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
        return (np.abs(frames).max(axis=1, initial=0) > 0.1).astype(np.float32)


def blocks(samples: Samples, seconds: float = 10.0) -> Iterator[Samples]:
    size = max(1, round(seconds * RATE))
    yield from (samples[first : first + size] for first in range(0, len(samples), size))


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), np.float32)


def spans(found: list[Window]) -> list[tuple[int, int]]:
    return [(round(each.start * RATE), round(each.start * RATE) + len(each.samples)) for each in found]


def check(samples: Samples, found: list[Window]) -> None:
    """Check what holds for all windows: their order, length and samples."""
    for (start, end), each in zip(spans(found), found, strict=True):
        assert 0 < end - start <= 30 * RATE
        np.testing.assert_array_equal(each.samples, samples[start:end])
    assert all(one[1] <= other[0] for one, other in pairwise(spans(found)))


pauses = st.sampled_from([0.1, 0.3, 0.5, 1.0, 3.0, 4.5, 12.0])
speech = st.lists(st.tuples(st.floats(0.15, 29.5), pauses), min_size=1, max_size=8)


def spoken(said: list[tuple[float, float]], lead: float = 0.0) -> Samples:
    """Return voices of some seconds, each with a pause after it."""
    parts = [silence(lead)]
    for voiced, pause in said:
        parts += [np.full(round(voiced * RATE), 0.5, np.float32), silence(pause)]
    return np.concatenate(parts)


@settings(max_examples=60)
@given(speech, st.sampled_from([0.0, 0.05, 1.0]), st.sampled_from([0.3, 7.0, 1000.0]))
@example([(29.5, 0.3), (29.5, 0.3)], 0.0, 7.0)
def test_each_voice_lies_in_exactly_one_window(
    said: list[tuple[float, float]], lead: float, block: float
) -> None:
    samples = spoken(said, lead)
    found = list(windows(blocks(samples, block), LoudIsVoice()))
    check(samples, found)
    inside = np.zeros(len(samples), int)
    for start, end in spans(found):
        inside[start:end] += 1
    assert (inside[samples > 0] == 1).all()


@settings(max_examples=20)
@given(speech)
def test_the_length_of_blocks_changes_nothing(said: list[tuple[float, float]]) -> None:
    samples = spoken(said)
    whole = spans(list(windows([samples], LoudIsVoice())))
    assert spans(list(windows(blocks(samples, 0.77), LoudIsVoice()))) == whole


@pytest.mark.parametrize("seconds", [10.0, 29.5, 29.9, 30.1, 95.0])
def test_a_monologue_is_cut_where_it_is_quiet(seconds: float) -> None:
    samples = np.full(round(seconds * RATE), 0.5, np.float32)
    for dip in np.arange(7.0, seconds, 7.0):  # a little quieter, but no pause
        samples[round(dip * RATE) : round((dip + 0.2) * RATE)] = 0.2
    found = list(windows(blocks(samples), LoudIsVoice()))
    check(samples, found)
    edges = spans(found)
    assert (edges[0][0], edges[-1][1]) == (0, len(samples))
    assert all(one[1] == other[0] for one, other in pairwise(edges))
    assert len(found) <= 1 + seconds // 20
    assert all(abs(np.abs(samples[end - 800 : end + 800]).min() - 0.2) < 0.01 for _, end in edges[:-1])


@pytest.mark.parametrize("seconds", [10.0, 29.9, 30.1, 95.0])
def test_a_human_voice_is_not_lost(seconds: float, voice: Samples) -> None:
    samples = np.resize(voice, round(seconds * RATE))
    found = list(windows(blocks(samples)))
    check(samples, found)
    voiced = np.repeat(VoiceDetector().probabilities(samples) >= 0.5, FRAME)
    inside = np.zeros(len(samples), bool)
    for start, end in spans(found):
        inside[start:end] = True
    assert inside[: len(voiced)][voiced].all()
    assert len(found) <= 1 + seconds // 20


def test_silence_noise_and_tones_are_no_speech() -> None:
    noise = np.random.default_rng(0).normal(scale=0.05, size=20 * RATE).astype(np.float32)
    chord = sum(tone(20.0, hertz=hertz, peak=0.15) for hertz in (262, 330, 392))
    for samples in (silence(60.0), noise, chord, silence(0.01), np.zeros(0, np.float32)):
        assert list(windows(blocks(np.asarray(samples, np.float32)))) == []


def test_speech_between_silence_is_found(voice: Samples) -> None:
    sentence = voice[: 7 * RATE]
    samples = np.concatenate(
        [silence(20), sentence, silence(20), sentence, silence(1), sentence, silence(20)]
    )
    found = list(windows(blocks(samples)))
    check(samples, found)
    (first, end), (second, last) = spans(found)
    assert first / RATE == pytest.approx(20, abs=0.4)
    assert end / RATE == pytest.approx(27, abs=0.6)
    assert second / RATE == pytest.approx(47, abs=0.4)
    assert last / RATE == pytest.approx(62, abs=0.6)


@pytest.mark.parametrize(("pause", "count"), [(0.5, 1), (PAUSE / RATE - 0.1, 1), (PAUSE / RATE + 0.1, 2)])
def test_a_long_pause_ends_a_window(pause: float, count: int) -> None:
    said = np.full(RATE, 0.5, np.float32)
    samples = np.concatenate([silence(1), said, silence(pause), said, silence(1)])
    found = list(windows(blocks(samples), LoudIsVoice()))
    assert len(found) == count
    assert spans(found)[0][0] == pytest.approx(RATE - PAD, abs=FRAME)
    assert spans(found)[-1][1] == pytest.approx(len(samples) - RATE + PAD, abs=FRAME)


def test_a_window_comes_as_soon_as_it_is_complete() -> None:
    read = 0

    def stream() -> Iterator[Samples]:
        nonlocal read
        for block in blocks(np.concatenate([np.full(RATE, 0.5, np.float32), silence(60)]), 1.0):
            read += 1
            yield block

    next(windows(stream(), LoudIsVoice()))
    assert read <= 7


def test_a_click_is_no_speech() -> None:
    samples = silence(5)
    samples[2 * RATE : 2 * RATE + 300] = 0.9
    assert list(windows(blocks(samples), LoudIsVoice())) == []


@pytest.mark.parametrize("loud", [0.0, 0.5])
def test_memory_stays_flat(loud: float) -> None:
    block = np.full(10 * RATE, loud, np.float32)
    tracemalloc.start()
    count = sum(1 for _ in windows((block for _ in range(90)), LoudIsVoice()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 0 if loud == 0 else 30 <= count <= 33
    assert peak < 2e7
