"""Tiny random models of transformers' own classes: saved as a folder, and written as GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.formats.graph.architecture import INTERLEAVED
from localspec.formats.graph.weights import HF_NAMES

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


def written(
    model: Any,
    family: str,
    path: Path,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model as llama.cpp's converter does, in float16; `metadata` and `tensors` replace others.

    A value of None leaves the key or the tensor out.
    """
    import gguf

    writer = gguf.GGUFWriter(path, family)
    writer.add_tokenizer_model("no_vocab")
    for key, value in (_metadata(model.config, family) | dict(metadata or {})).items():
        _add(writer, key if key.startswith("general.") else f"{family}.{key}", value)
    for name, values in (_tensors(model, family) | dict(tensors or {})).items():
        if values is not None:
            kind = np.float16 if values.ndim == 2 else np.float32
            writer.add_tensor(name, np.ascontiguousarray(values, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: Any, family: str) -> dict[str, Any]:
    """Return the values of an architecture, by llama.cpp's names."""
    scaling = config.rope_scaling or {}
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_theta),
        "rope.dimension_count": head_width(config),
        "vocab_size": config.vocab_size,
        "rope.scaling.type": scaling.get("rope_type"),
        "rope.scaling.factor": scaling.get("factor"),
        "rope.scaling.original_context_length": scaling.get("original_max_position_embeddings"),
    }
    if head_width(config) != config.hidden_size // config.num_attention_heads:
        values |= {f"attention.{part}_length": head_width(config) for part in ("key", "value")}
    if family == "granite":
        values |= {
            "embedding_scale": config.embedding_multiplier,
            "residual_scale": config.residual_multiplier,
            "attention.scale": config.attention_multiplier,
            "logit_scale": config.logits_scaling,
        }
    return values


def head_width(config: Any) -> int:
    """Return the columns of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _tensors(model: Any, family: str) -> dict[str, NDArray[np.float32]]:
    """Return the tensors by llama.cpp's names, the rows of queries and keys in its order."""
    names = {hf_name: name for name, hf_name in HF_NAMES.items()}
    if family != "olmo2":
        names["post_attention_layernorm"] = "ffn_norm"
    found = {}
    for full_name, tensor in model.state_dict().items():
        if full_name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        *place, part, suffix = full_name.removeprefix("model.").split(".")
        layer, inner = (f"blk.{place[1]}.", place[2:]) if place else ("", [])
        stem = ".".join([*inner, part]) if layer else full_name.removesuffix(f".{suffix}")
        values, name = tensor.numpy(), names[stem]
        if name in ("attn_q", "attn_k") and family in INTERLEAVED:
            halves = values.reshape(-1, 2, head_width(model.config) // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        found[f"{layer}{name}.{suffix}"] = values
    return found


def _add(writer: Any, key: str, value: Any) -> None:
    """Add a value in the type that llama.cpp reads."""
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if value is not None:
        kinds.get(type(value), writer.add_array)(key, value)
