"""The log-mel spectrogram is Whisper's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.speech.features import log_mel, mel_filters
from localspec.speech.types import RATE

LENGTHS = [0, 100, RATE, 5 * RATE + 77, 30 * RATE - 50, 30 * RATE, 31 * RATE]


def noise(length: int) -> NDArray[np.float32]:
    return (0.1 * np.random.default_rng(length).normal(size=length)).astype(np.float32)


def by_definition(samples: NDArray[np.float32], mels: int) -> NDArray[np.float64]:
    """Return the spectrogram in double precision, all frames at once."""
    padded = np.zeros(30 * RATE)
    padded[: min(len(samples), len(padded))] = samples[: len(padded)]
    padded = np.pad(padded, 200, mode="reflect")
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = np.stack([padded[at * 160 : at * 160 + 400] for at in range(3000)])
    power = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2
    logs = np.log10(np.maximum(power @ mel_filters(mels), 1e-10)).T
    return np.asarray((np.maximum(logs, logs.max() - 8) + 4) / 4)


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("length", LENGTHS)
def test_it_is_as_defined(length: int, mels: int) -> None:
    found = log_mel(noise(length), mels)
    assert found.shape == (mels, 3000)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, by_definition(noise(length), mels), atol=1e-4)


@pytest.mark.engines
@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("length", LENGTHS[1:])
def test_it_is_that_of_transformers(length: int, mels: int, voice: NDArray[np.float32]) -> None:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=mels)
    for samples in (noise(length), voice[:length]):
        expected = extractor(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
        np.testing.assert_allclose(log_mel(samples, mels), expected, atol=1e-4)
