"""Whisper's log-mel spectrogram: what its encoder reads of 30 seconds of audio."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from localspec.speech.types import RATE

N_FFT, HOP = 400, 160  # samples: windows of 25 ms, one each 10 ms
SECONDS = 30
FRAMES = SECONDS * RATE // HOP
ALONE = 4 * 65536  # multiplications for which OpenBLAS takes one thread: more would spin beside OpenVINO
BATCH = 250  # windows transformed at once, which stay in the processor's cache


def log_mel(samples: NDArray[np.float32], mels: int) -> NDArray[np.float32]:
    """Return the log-mel spectrogram [mels, 3000] of mono samples at 16 kHz, padded with silence to 30 s.

    Whisper has 80 mels, and 128 from large-v3 on. Samples beyond 30 s are not read. As in OpenAI's
    `whisper/audio.py`: the power spectrum through mel filters, its decimal logarithm, no lower than 8 below
    the highest value, shifted and scaled to about -1 to 1.
    """
    padded = np.zeros(SECONDS * RATE + N_FFT, np.float32)
    kept = samples[: SECONDS * RATE]
    start = N_FFT // 2
    padded[start : start + len(kept)] = kept
    padded[:start] = padded[2 * start : start : -1]  # mirrored: frame 0 is centred on sample 0
    padded[-start:] = padded[-start - 2 : -2 * start - 2 : -1]
    logs = np.log10(np.maximum(_mel_power(padded, mels), 1e-10)).T
    return np.ascontiguousarray((np.maximum(logs, logs.max() - 8) + 4) / 4)


def _mel_power(padded: NDArray[np.float32], mels: int) -> NDArray[np.float32]:
    """Return the power [3000, mels] in each mel band; the zeros at the end need no transform."""
    windows = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP][:FRAMES]
    hann, filters = _hann(), mel_filters(mels)
    rows = max(1, ALONE // filters.size)
    power = np.zeros((FRAMES, mels), np.float32)
    sounding = np.flatnonzero(padded)
    last = 0 if not len(sounding) else min(FRAMES, sounding[-1] // HOP + 1)
    for first in range(0, last, BATCH):
        spectrum = np.fft.rfft(windows[first : first + BATCH] * hann, axis=1)
        squares = spectrum.real**2 + spectrum.imag**2
        own = power[first : first + BATCH]
        for at in range(0, len(squares), rows):
            own[at : at + rows] = squares[at : at + rows] @ filters
    return power


@cache
def _hann() -> NDArray[np.float32]:
    """Return the periodic Hann window."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)


@cache
def mel_filters(mels: int) -> NDArray[np.float32]:
    """Return triangular filters [201, mels] from 0 to 8000 Hz, each with an area of one.

    The mel scale is that of Slaney's Auditory Toolbox (1998), with librosa's `norm="slaney"`: linear below
    1000 Hz (200/3 Hz a mel), logarithmic above (27 mels for a factor of 6.4).
    """
    frequencies = np.linspace(0, RATE / 2, N_FFT // 2 + 1)
    edges = _hertz(np.linspace(0, _mel(RATE / 2), mels + 2))
    below, above = np.diff(edges)[:-1], np.diff(edges)[1:]
    rising = (frequencies[:, None] - edges[:-2]) / below
    falling = (edges[2:] - frequencies[:, None]) / above
    triangles = np.maximum(0, np.minimum(rising, falling))
    return (triangles * 2 / (edges[2:] - edges[:-2])).astype(np.float32)


def _mel(hertz: float) -> float:
    return float(15 + np.log(hertz / 1000) * 27 / np.log(6.4))


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))
