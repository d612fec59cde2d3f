"""Audio for the tests of speech: tones, files of any format, and a human voice."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.speech import audio

CLIP = Path(__file__).parents[1] / "data" / "speech" / "austen.opus"
FRAME = 960  # samples, which every codec here takes


def tone(seconds: float, rate: int = 16_000, hertz: float = 440.0, peak: float = 0.5) -> NDArray[np.float32]:
    """Return a sine."""
    return (peak * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encode(
    path: Path,
    codec: str,
    rate: int = 48_000,
    layout: str = "mono",
    *,
    seconds: float = 3.0,
    mute: tuple[int, ...] = (),
) -> Path:
    """Write a tone of 440 Hz to a file, in all channels but the muted ones."""
    samples = tone(seconds, rate)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        context = stream.codec_context
        channels = np.stack([samples * (at not in mute) for at in range(context.layout.nb_channels)])
        resampler = av.AudioResampler(context.format, layout, rate, frame_size=context.frame_size or FRAME)
        for first in range(0, len(samples), FRAME):
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(channels[:, first : first + FRAME]), format="fltp", layout=layout
            )
            frame.sample_rate, frame.pts = rate, first
            for piece in resampler.resample(frame):
                container.mux(stream.encode(piece))
        for piece in resampler.resample(None):
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="session")
def voice() -> NDArray[np.float32]:
    """24.7 seconds of a human voice."""
    return np.concatenate(list(audio.blocks(CLIP)))
