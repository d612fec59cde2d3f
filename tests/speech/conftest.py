"""For the tests of speech: tones, files of any format, a human voice, and a tiny random Whisper model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import av
import numpy as np
import pytest
import tiny_whisper
from numpy.typing import NDArray
from tokenizers import Tokenizer

from localspec.engines.openvino.engine import OpenVino
from localspec.formats.files import read_json
from localspec.formats.whisper import graphs
from localspec.formats.whisper.weights import open_whisper
from localspec.library import Silent
from localspec.speech import audio
from localspec.speech.whisper.model import SpeechModel

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


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("speech")
    tiny_whisper.ctranslate2_folder(folder / "ct2")
    return tiny_whisper.huggingface_folder(folder / "ct2", folder / "hf")


@pytest.fixture(scope="session")
def folder(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's graphs, and the files beside them."""
    into = tmp_path_factory.mktemp("graphs")
    config = read_json(source / "config.json")
    graphs.write(open_whisper(source), config, into, Silent())
    for name in ("generation_config.json", "tokenizer.json"):
        shutil.copyfile(source / name, into / name)
    (into / "config.json").write_text(json.dumps(config))
    return into


@pytest.fixture
def model(folder: Path) -> SpeechModel:
    """The model, ready to listen."""
    return SpeechModel(OpenVino(folder), folder, Tokenizer.from_file(str(folder / "tokenizer.json")))
