"""Families that become graphs, against transformers and llama.cpp: every logit of a tiny random model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from said import Said

from localspec.engines.llamacpp import LlamaCpp
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import architecture
from localspec.formats.graph.architecture import INTERLEAVED
from localspec.formats.graph.ir import import_weights
from localspec.formats.graph.weights import HF_NAMES
from localspec.formats.huggingface import loading
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.library import Silent

pytestmark = pytest.mark.engines

SIZES = {
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONG = {
    "type": "longrope",
    "short_factor": [1.0 + 0.1 * at for at in range(12)],
    "long_factor": [4.0] * 12,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.1,
            "logits_scaling": 4.0,
        },
    ),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3, long texts": (
        "phi3",
        {
            "sliding_window": None,
            "partial_rotary_factor": 0.75,
            "rope_scaling": LONG,
            "original_max_position_embeddings": 64,
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "qwen2, yarn": ("qwen2", {"rope_scaling": YARN}),
    "llama, linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
}
TOKENS = [at * at % 96 for at in range(40)]


def saved(family: str, folder: Path, **options: Any) -> Any:
    """Save a random model whose weights float16 holds exactly, and return it."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **SIZES | options)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            size = 0.1 if weights.ndim > 1 else 1.0
            drawn = torch.randn_like(weights) * 0.15 + ("norm" in name) if weights.ndim == 1 else None
            weights.copy_(((torch.randn_like(weights) * size) if drawn is None else drawn).half().float())
    model.save_pretrained(folder, safe_serialization=True)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_every_logit_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    import torch

    family, options = FAMILIES[name]
    model = saved(family, tmp_path / "folder", **options)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    into = tmp_path / "graph"
    into.mkdir()
    import_weights(SafetensorsFolder.open(tmp_path / "folder"), into, Silent(), plain=True)
    session = OpenVino(into, precision="f32", kv="f32", group=0).session()
    found = np.concatenate(
        [session.forward(TOKENS[at:end], end - at).copy() for at, end in ((0, 11), (11, 12), (12, 40))]
    )
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()
    assert expected.std() > 0.1


def written(model: Any, family: str, path: Path) -> Path:
    """Write a model as llama.cpp's converter does, in float16."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    head = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    if config.rope_scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(config.rope_scaling["rope_type"]))
        writer.add_rope_scaling_factor(config.rope_scaling["factor"])
        if original := config.rope_scaling.get("original_max_position_embeddings"):
            writer.add_rope_scaling_orig_ctx_len(original)
    if family == "granite":
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    names = {hf_name: name for name, hf_name in HF_NAMES.items()}
    if family != "olmo2":
        names["post_attention_layernorm"] = "ffn_norm"
    for full_name, tensor in model.state_dict().items():
        *place, part, suffix = full_name.removeprefix("model.").split(".")
        layer, inner = (f"blk.{place[1]}.", place[2:]) if place else ("", [])
        stem = ".".join([*inner, part]) if layer else full_name.removesuffix(f".{suffix}")
        values = tensor.numpy()
        name = names[stem]
        if name in ("attn_q", "attn_k") and family in INTERLEAVED:
            halves = values.reshape(-1, 2, head // 2, values.shape[1])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        kind = np.float16 if values.ndim == 2 else np.float32
        writer.add_tensor(f"{layer}{name}.{suffix}", np.ascontiguousarray(values, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", ["granite", "olmo2", "smollm3", "qwen2, yarn", "llama, linear"])
def test_a_gguf_gives_the_logits_of_transformers_and_of_llama_cpp(name: str, tmp_path: Path) -> None:
    import torch

    family, options = FAMILIES[name]
    if family == "smollm3":
        options = {}  # llama.cpp knows no other layers without positions than every fourth
    model = saved(family, tmp_path / "folder", **options)
    path = written(model, family, tmp_path / "model.gguf")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    into = tmp_path / "graph"
    into.mkdir()
    import_weights(GgufFile.open(path), into, Silent(), plain=True)
    found = OpenVino(into, precision="f32", kv="f32", group=0).session().forward(TOKENS, len(TOKENS))
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()
    theirs = LlamaCpp(path, kv="f32", flash="off", threads=2).session().forward(TOKENS, len(TOKENS))
    assert np.abs(found - theirs).max() < 2e-2 * np.abs(expected).max()


def test_torch_refuses_a_gguf_whose_scales_it_would_not_read(tmp_path: Path) -> None:
    import torch

    path = written(saved("granite", tmp_path / "folder"), "granite", tmp_path / "model.gguf")
    with pytest.raises(UnsupportedModel, match="`granite` model, which torch cannot read as GGUF"):
        loading.load(path, torch.device("cpu"), torch.float32)


def test_granites_own_defaults_are_not_those_of_others(tmp_path: Path) -> None:
    saved("granite", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["attention_multiplier"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert architecture.of_folder(SafetensorsFolder.open(tmp_path)).attention_scale == 1.0


def test_longrope_is_kept_to_its_original_context(tmp_path: Path) -> None:
    """In the graph, in the config beside it, on the engine, and in words."""
    folder, into, said = tmp_path / "folder", tmp_path / "graph", Said()
    saved("phi3", folder, **FAMILIES["phi3, long texts"][1])
    assert architecture.of_folder(SafetensorsFolder.open(folder)).context == 64
    into.mkdir()
    shutil.copyfile(folder / "config.json", into / "config.json")
    assert import_weights(SafetensorsFolder.open(folder), into, said, plain=True)["context"] == 64
    assert OpenVino(into).context == 64
    assert json.loads((into / "config.json").read_text())["rope_scaling"] == LONG
    (line,) = said.lines
    assert "texts of up to 64 tokens, not 512" in line


@pytest.mark.parametrize(
    ("family", "changed", "error", "said"),
    [
        ("phi3", {"sliding_window": 64}, UnsupportedModel, "sliding window of 64"),
        ("granite", {"model_type": "granitemoe"}, UnsupportedModel, "`granitemoe` model"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedModel, "`dynamic`"),
        ("llama", {"rope_scaling": {"rope_type": "yarn"}}, BrokenModel, "has no `factor`"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_a_reason(
    family: str, changed: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    saved(family, tmp_path, **({"sliding_window": None} if family == "phi3" else {}))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(error, match=said):
        architecture.of_folder(SafetensorsFolder.open(tmp_path))
