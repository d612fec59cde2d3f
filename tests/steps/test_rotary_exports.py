"""Rotary positions in exported models: a GGUF and a folder give the logits of what they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from random_models import TOKENS, saved, written

from localspec.engines.llamacpp import LlamaCpp
from localspec.errors import UnsupportedModel
from localspec.formats.huggingface.loading import load, load_trainable
from localspec.library.importing import convert
from localspec.steps.export import gguf_writer, huggingface_writer

pytestmark = pytest.mark.engines

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"type": "linear", "factor": 2.0}


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    convert.from_gguf(tiny.write_gguf(tiny.make("llama"), tmp_path / "words.gguf"), folder)
    return folder


def logits_of(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].float().numpy()


def state_of(path: Path) -> dict[str, Any]:
    return {
        name: values.numpy()
        for name, values in load_trainable(path, torch.device("cpu")).state_dict().items()
    }


def check_gguf(source: Path, configs: Path, into: Path) -> None:
    """Write a GGUF of a model, and compare llama.cpp on it to torch on its source."""
    expected = logits_of(load(source, torch.device("cpu"), torch.float32))
    gguf_writer.write(source, configs, state_of(source), 4, into)
    found = LlamaCpp(into, kv="f32", flash="off", threads=2).session().forward(TOKENS, len(TOKENS))
    assert np.abs(found - expected).max() < 2e-2 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("family", "scaling"),
    [
        ("llama", LLAMA3),
        ("llama", YARN),
        ("llama", LINEAR),
        ("qwen2", YARN),
        ("qwen2", LINEAR),
        ("qwen2", None),
    ],
)
def test_a_folder_as_gguf(family: str, scaling: Any, configs: Path, tmp_path: Path) -> None:
    saved(family, tmp_path / "folder", rope_scaling=scaling, rope_theta=500.0)
    check_gguf(tmp_path / "folder", configs, tmp_path / "out.gguf")


@pytest.mark.parametrize(
    ("family", "scaling"), [("qwen2", LLAMA3), ("llama", YARN | {"attention_factor": 2.0})]
)
def test_positions_that_a_gguf_cannot_express_are_refused(
    family: str, scaling: Any, configs: Path, tmp_path: Path
) -> None:
    saved(family, tmp_path / "folder", rope_scaling=scaling)
    with pytest.raises(UnsupportedModel, match="RoPE scaling that a"):
        check_gguf(tmp_path / "folder", configs, tmp_path / "out.gguf")


GGUFS: dict[str, dict[str, Any]] = {
    "none": {"rope.freq_base": None},
    "linear": {"rope.scaling.factor": 4.0},
    "yarn": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    },
}


@pytest.mark.parametrize("name", GGUFS)
def test_a_gguf_as_gguf_and_as_folder(name: str, configs: Path, tmp_path: Path) -> None:
    source = written(saved("qwen2", tmp_path / "made"), "qwen2", tmp_path / "in.gguf", GGUFS[name])
    check_gguf(source, configs, tmp_path / "out.gguf")
    model = load_trainable(source, torch.device("cpu"))
    expected = logits_of(model)
    huggingface_writer.save(model, source, configs, tmp_path / "folder")
    found = logits_of(load(tmp_path / "folder", torch.device("cpu"), torch.float32))
    assert np.abs(found - expected).max() < 1e-2 * np.abs(expected).max()


def test_positions_that_a_folder_cannot_express_are_refused(configs: Path, tmp_path: Path) -> None:
    values = {"rope.scaling.attn_factor": 1.3}
    source = written(saved("qwen2", tmp_path / "made"), "qwen2", tmp_path / "in.gguf", values)
    with pytest.raises(UnsupportedModel, match="RoPE scaling that a config.json cannot express"):
        huggingface_writer.save(
            load_trainable(source, torch.device("cpu")), source, configs, tmp_path / "folder"
        )
