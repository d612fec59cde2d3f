"""Configs that stand for another model than the files beside them, as torch would load them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz import inputs

from localspec.errors import BrokenModel, ModelError, UnsupportedModel
from localspec.formats.huggingface.loading import load

pytestmark = pytest.mark.engines

CONFIG = inputs.CONFIG | {"rope_scaling": None, "intermediate_size": inputs.INNER, "vocab_size": inputs.VOCAB}


def load_with(folder: Path, config: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(inputs.safetensors())
    return load(folder, torch.device("cpu"), torch.float32)


def test_a_config_that_fits_is_loaded(tmp_path: Path) -> None:
    assert load_with(tmp_path, CONFIG).config.hidden_size == inputs.WIDTH


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("vocab_size", 1 << 20), ("intermediate_size", 1 << 19), ("num_hidden_layers", 1000)),
        *(("num_attention_heads", 1 << 16), ("head_dim", 1 << 19), ("hidden_size", 1 << 16)),
    ],
)
def test_a_config_of_a_far_larger_model_is_refused(tmp_path: Path, key: str, value: int) -> None:
    with pytest.raises(BrokenModel, match=r"stands for [\d,]+ weights and its files have \d"):
        load_with(tmp_path, CONFIG | {key: value})


def test_missing_sizes_do_not_become_those_of_the_librarys_own_model(tmp_path: Path) -> None:
    sizes = ("hidden_size", "num_hidden_layers", "intermediate_size")
    with pytest.raises(BrokenModel, match="stands for"):
        load_with(tmp_path, {key: value for key, value in CONFIG.items() if key not in sizes})


@pytest.mark.parametrize("value", [{}, "7", 1 << 70, -1, 0.5, "x" * 300])
@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_act", "num_attention_heads"])
def test_values_of_other_types_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ModelError) as caught:
        load_with(tmp_path, CONFIG | {key: value})
    assert len(caught.value.message) < 900


def test_a_gguf_tensor_of_an_unknown_name_is_named(tmp_path: Path) -> None:
    data = inputs.gguf_file(tmp_path).replace(b"blk.0.ffn_down.weight", b"blk_0_ffn_down_weight")
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises((BrokenModel, UnsupportedModel), match="no tensor for|blk_0_ffn_down_weight"):
        load(tmp_path / "m.gguf", torch.device("cpu"), torch.float32)
