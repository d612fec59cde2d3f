"""A tiny random Whisper model, as a folder and as a model that listens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny_whisper
from tokenizers import Tokenizer

from localspec.engines.openvino.engine import OpenVino
from localspec.formats.files import read_json
from localspec.formats.whisper import graphs
from localspec.formats.whisper.weights import open_whisper
from localspec.library import Silent
from localspec.speech.whisper.model import SpeechModel


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
