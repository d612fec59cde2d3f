"""Configs that stand for another model than the files beside them, as torch would load them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz import inputs
from random_models import TOKENS, saved, written

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


def saved_as(folder: Path, changed: dict[str, Any], **tensors: Any) -> Path:
    """Save a random Llama model with other values in its config.json and other tensors."""
    from safetensors.numpy import load_file, save_file

    saved("llama", folder)
    config = json.loads((folder / "config.json").read_text("utf-8")) | changed
    found = load_file(folder / "model.safetensors") | tensors
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if v is not ...}), "utf-8"
    )
    save_file({k: v for k, v in found.items() if v is not None}, folder / "model.safetensors")
    return folder


UP = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("changed", "tensors", "said"),
    [
        ({}, {"score.weight": (2, 128)}, "tensor `score.weight`"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            {"score.weight": (2, 128)},
            "tensor `score.weight`",
        ),
        ({}, {f"{UP}.lora_A.weight": (2, 128)}, r"tensor `.*lora_A\.weight`"),
        ({"tie_word_embeddings": True}, {}, "`tie_word_embeddings`"),
        *(
            ({"quantization_config": {"quant_method": method}}, {}, f"`?{said}`?")
            for method, said in (("fp8", "GPU"), ("bitsandbytes", "bitsandbytes"), ("nobody", "nobody"))
        ),
        ({"quantization_config": {"bits": 4}}, {}, "`quantization_config`"),
        ({"quantization_config": "int8"}, {}, "`quantization_config`"),
        ({"rms_norm_eps": "1e-6"}, {}, "`rms_norm_eps`"),
        ({"rope_theta": "10000"}, {}, "`rope_theta`"),
        ({"rope_scaling": {"factor": 2.0}}, {}, "rope_scaling"),
    ],
)
def test_what_transformers_would_only_warn_about_is_refused(
    changed: dict[str, Any], tensors: dict[str, tuple[int, ...]], said: str, tmp_path: Path
) -> None:
    ones = {name: np.ones(shape, np.float32) for name, shape in tensors.items()}
    with pytest.raises(UnsupportedModel, match=said) as caught:
        load(saved_as(tmp_path, changed, **ones), torch.device("cpu"), torch.float32)
    assert "Download" not in str(caught.value)


@pytest.mark.parametrize("scale", [f"{UP}.weight_scale", f"{UP}.SCB", None])
def test_whole_numbers_are_no_weights(scale: str | None, tmp_path: Path) -> None:
    tensors = {f"{UP}.weight": np.ones((256, 128), np.int8)}
    tensors |= {scale: np.ones(256, np.float32)} if scale else {}
    with pytest.raises(UnsupportedModel, match=f"`{UP}.weight` in"):
        load(saved_as(tmp_path, {}, **tensors), torch.device("cpu"), torch.float32)


def test_a_missing_tensor_is_not_drawn_at_random(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match=r"no tensor `lm_head\.weight`"):
        load(saved_as(tmp_path, {}, **{"lm_head.weight": None}), torch.device("cpu"), torch.float32)


def logits_of(path: Path) -> Any:
    with torch.no_grad():
        return load(path, torch.device("cpu"), torch.float32)(torch.tensor([TOKENS])).logits[0].numpy()


@pytest.mark.parametrize("scaling", [{}, {"rope_type": "linear", "factor": 4.0}])
def test_rotary_positions_are_read_where_transformers_5_keeps_them(
    scaling: dict[str, Any], tmp_path: Path
) -> None:
    old = saved_as(tmp_path / "old", {"rope_theta": 500.0, "rope_scaling": scaling or None})
    inner = {"rope_type": "default", **scaling, "rope_theta": 500.0}
    new = saved_as(tmp_path / "new", {"rope_theta": ..., "rope_scaling": ..., "rope_parameters": inner})
    assert np.abs(logits_of(new) - logits_of(old)).max() == 0
    assert np.abs(logits_of(old) - logits_of(saved_as(tmp_path / "other", {}))).max() > 0.1


ROPES: dict[str, dict[str, Any]] = {
    "yarn": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    "linear": {"rope.scaling.factor": 4.0},
    "a factor of positions": {"rope.scaling.attn_factor": 1.3},
}


@pytest.mark.parametrize("name", ROPES)
def test_rotary_positions_of_a_gguf_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    from localspec.engines.llamacpp import LlamaCpp

    path = written(saved("qwen2", tmp_path / "folder"), "qwen2", tmp_path / "m.gguf", ROPES[name])
    theirs = LlamaCpp(path, kv="f32", flash="off", threads=2).session().forward(TOKENS, len(TOKENS))
    assert np.abs(logits_of(path) - theirs).max() < 2e-2 * np.abs(theirs).max()


def test_biases_of_a_gguf_are_read(tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "folder", attention_bias=True, mlp_bias=True)
    path = written(model, "llama", tmp_path / "m.gguf")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    assert np.abs(logits_of(path) - expected).max() < 2e-3 * np.abs(expected).max()
    fewer = {f"blk.{layer}.attn_output.bias": None for layer in range(4)}
    with pytest.raises(UnsupportedModel, match=r"o_proj\.bias"):
        logits_of(written(model, "llama", tmp_path / "fewer.gguf", tensors=fewer))
