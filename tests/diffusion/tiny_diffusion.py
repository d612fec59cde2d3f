"""Tiny random diffusion models in folders, and their logits in float64 by a reference of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from numpy.typing import NDArray

from localspec.formats.diffusion import weights

Values = NDArray[np.float64]

WIDTH, HEADS, KEY_HEADS, HEAD_WIDTH, INNER, VOCAB, MASK = 32, 4, 2, 8, 64, 40, 39
USUAL = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_WIDTH,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "mask_token_id": MASK,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "sdar": USUAL | {"model_type": "sdar", "block_size": 4},
    "block_llama": USUAL | {"model_type": "block_llama", "block_size": 4, "tie_word_embeddings": True},
    "dream": USUAL | {"model_type": "Dream"},
    "llada": {
        "model_type": "llada",
        "d_model": WIDTH,
        "n_heads": HEADS,
        "n_kv_heads": HEADS,
        "mlp_hidden_size": INNER,
        "embedding_size": VOCAB,
        "vocab_size": VOCAB,
        "max_sequence_length": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "mask_token_id": MASK,
        "weight_tying": False,
        "include_bias": False,
        "block_type": "llama",
    },
}


def config_of(family: str, layers: int = 2, **changed: Any) -> dict[str, Any]:
    """Return a config.json; `changed` are other values, None to leave a key out."""
    name = "n_layers" if family == "llada" else "num_hidden_layers"
    found = CONFIGS[family] | {name: layers} | changed
    return {key: value for key, value in found.items() if value is not None}


def tensors(family: str, layers: int = 2, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Draw the tensors of a model by the usual names."""
    numbers = np.random.default_rng(seed)
    key_heads = HEADS if family == "llada" else KEY_HEADS
    inside, shared = HEADS * HEAD_WIDTH, key_heads * HEAD_WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, WIDTH),
        "model.norm.weight": (WIDTH,),
    }
    if family != "block_llama":
        shapes["lm_head.weight"] = (VOCAB, WIDTH)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for part, size in (("q", inside), ("k", shared), ("v", shared)):
            shapes[f"{at}self_attn.{part}_proj.weight"] = (size, WIDTH)
            if family == "dream":
                shapes[f"{at}self_attn.{part}_proj.bias"] = (size,)
        shapes[f"{at}self_attn.o_proj.weight"] = (WIDTH, inside)
        if family == "sdar":
            shapes |= {f"{at}self_attn.{part}_norm.weight": (HEAD_WIDTH,) for part in "qk"}
        shapes |= {f"{at}mlp.{part}_proj.weight": (INNER, WIDTH) for part in ("gate", "up")}
        shapes[f"{at}mlp.down_proj.weight"] = (WIDTH, INNER)
        shapes |= {f"{at}{part}.weight": (WIDTH,) for part in ("input_layernorm", "post_attention_layernorm")}
    return {
        name: (
            numbers.normal(0.0 if "bias" in name else 1.0, 0.2, size)
            if len(size) == 1
            else numbers.normal(0, 1.0 if "embed" in name else 0.3, size)
        ).astype(np.float32)
        for name, size in shapes.items()
    }


def write(folder: Path, family: str, layers: int = 2, seed: int = 0, **changed: Any) -> Path:
    """Write a model as its family stores it, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    named = {
        weights.stored_name(family, name): value for name, value in tensors(family, layers, seed).items()
    }
    tiny.write_safetensors(folder / "model.safetensors", named)
    (folder / "config.json").write_text(json.dumps(config_of(family, layers, **changed)))
    return folder


def reference(
    found: dict[str, NDArray[np.float32]], tokens: list[int], positions: list[int], sees: NDArray[np.bool_]
) -> tuple[Values, Values]:
    """Return the logits [n, vocab] after each of the tokens, and the last layer's attention [n, n]."""
    values = {name: value.astype(np.float64) for name, value in found.items()}
    x, weights_of = values["model.embed_tokens.weight"][tokens], np.zeros((0, 0))
    for layer in range(sum("o_proj" in name for name in values)):
        at = f"model.layers.{layer}."
        mixed, weights_of = _attention(
            values, at, _normed(x, values[f"{at}input_layernorm.weight"]), positions, sees
        )
        x = x + mixed
        inner = _normed(x, values[f"{at}post_attention_layernorm.weight"])
        gate, up = (inner @ values[f"{at}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ values[f"{at}mlp.down_proj.weight"].T
    head = values.get("lm_head.weight", values["model.embed_tokens.weight"])
    return _normed(x, values["model.norm.weight"]) @ head.T, weights_of


def _attention(
    values: dict[str, Values], at: str, x: Values, positions: list[int], sees: NDArray[np.bool_]
) -> tuple[Values, Values]:
    parts = {}
    for part in "qkv":
        y = x @ values[f"{at}self_attn.{part}_proj.weight"].T
        y = y + values.get(f"{at}self_attn.{part}_proj.bias", 0.0)
        y = y.reshape(len(x), -1, HEAD_WIDTH)
        norm = values.get(f"{at}self_attn.{part}_norm.weight")
        y = y if norm is None else _normed(y, norm)
        parts[part] = y if part == "v" else _rotated(y, positions)
    keys, mixed = (np.repeat(parts[part], HEADS // parts[part].shape[1], axis=1) for part in "kv")
    scores = np.einsum("thd,shd->hts", parts["q"], keys) / np.sqrt(HEAD_WIDTH)
    scores = np.where(sees, scores, -np.inf)
    shown = np.exp(scores - scores.max(-1, keepdims=True))
    shown /= shown.sum(-1, keepdims=True)
    out = np.einsum("hts,shd->thd", shown, mixed).reshape(len(x), -1)
    return out @ values[f"{at}self_attn.o_proj.weight"].T, shown.mean(0)


def _rotated(x: Values, positions: list[int]) -> Values:
    rates = 10000.0 ** (-np.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)
    angles = (np.array(positions)[:, None] * rates)[:, None]
    first, second = x[..., : HEAD_WIDTH // 2], x[..., HEAD_WIDTH // 2 :]
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def _normed(x: Values, weight: Values) -> Values:
    found: Values = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight
    return found
