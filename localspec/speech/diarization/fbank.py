"""Kaldi's log-mel filter banks, which the embedding model reads."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from localspec.speech.diarization.embedding_graph import MELS
from localspec.speech.types import RATE

WIDTH, HOP, N_FFT = 400, 160, 512  # samples
LOWEST = 20.0  # Hz
PREEMPHASIS = 0.97
FLOOR = np.float32(np.finfo(np.float32).eps)


def fbank(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log-mel energies [frames, 80] of mono samples at 16 kHz, a frame of 25 ms each 10 ms.

    As Kaldi's `compute-fbank-feats` does without dither: each frame without its mean, pre-emphasis, a Povey
    window, and the power spectrum in triangular bands. Audio shorter than a frame has no frames.
    """
    if len(samples) < WIDTH:
        return np.zeros((0, MELS), np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(samples, WIDTH)[::HOP]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    spectrum = np.fft.rfft((frames - np.float32(PREEMPHASIS) * before) * _window(), N_FFT, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    return np.log(np.maximum(power @ _bands(), FLOOR)).astype(np.float32)


def middle(frames: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the seconds of the middle of frames, by their numbers."""
    return (frames * HOP + WIDTH / 2) / RATE


@cache
def _window() -> NDArray[np.float32]:
    """Return the Povey window: a Hann window to the power of 0.85."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WIDTH) / (WIDTH - 1))
    return (hann**0.85).astype(np.float32)


@cache
def _bands() -> NDArray[np.float32]:
    """Return triangles [257, 80] of equal width on Kaldi's mel scale, 1127 ln(1 + f / 700)."""
    bins = _mel(np.arange(N_FFT // 2 + 1) * RATE / N_FFT)[:, None]
    edges = np.linspace(_mel(np.float64(LOWEST)), _mel(np.float64(RATE / 2)), MELS + 2)
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    triangles = np.maximum(0, np.minimum(rising, falling))
    triangles[-1] = 0  # Kaldi leaves out the last bin
    return triangles.astype(np.float32)


def _mel(hertz: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    return np.asarray(1127 * np.log(1 + hertz / 700))
