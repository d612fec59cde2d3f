"""Random heads for a tiny target, in the published layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from numpy.typing import NDArray

from localspec.formats.heads.layout import MATRICES, NORMS

KEPT, INNER, TAPS, LAYERS = 60, 128, (1, 2, 4), 5
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": tiny.WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 256,
    "vocab_size": tiny.VOCAB,
    "draft_vocab_size": KEPT,
    "hidden_act": "silu",
    "num_hidden_layers": 1,
    "eagle_aux_hidden_state_layer_ids": list(TAPS),
}
OUTER = ("architectures", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids")
SIZES = {"width": tiny.WIDTH, "pair": 2 * tiny.WIDTH, "inner": INNER, "queries": 128, "keys": 64}


def random_tensors(seed: int = 0, layer: str = "midlayer.") -> dict[str, NDArray[Any]]:
    """Draw the tensors of a head as SafeAILab publishes them; its tokens are out of order."""
    numbers = np.random.default_rng(seed)

    def drawn(*shape: int) -> NDArray[Any]:
        return numbers.normal(0, shape[-1] ** -0.5, shape).astype(np.float16)

    found = {
        f"{layer}{name}": drawn(SIZES[rows], SIZES[columns]) for name, (rows, columns) in MATRICES.items()
    }
    found |= {f"{layer}{name}": (1 + drawn(tiny.WIDTH)) for name in NORMS}
    tokens = numbers.permutation(tiny.VOCAB)[:KEPT].astype(np.int64)
    known = np.zeros(tiny.VOCAB, np.bool_)
    known[tokens] = True
    return found | {
        "fc.weight": drawn(tiny.WIDTH, len(TAPS) * tiny.WIDTH),
        "norm.weight": 1 + drawn(tiny.WIDTH),
        "lm_head.weight": drawn(KEPT, tiny.WIDTH) * np.float16(8),
        "d2t": tokens - np.arange(KEPT),
        "t2d": known,
    }


def write_head(folder: Path, tensors: dict[str, NDArray[Any]], **config: Any) -> Path:
    """Write a head in EAGLE-3's layout; keys that are None are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny.write_safetensors(folder / "model.safetensors", tensors)
    values = {key: value for key, value in (CONFIG | config).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    return folder


def write_speculators(folder: Path, tensors: dict[str, NDArray[Any]], **config: Any) -> Path:
    """Write a head in the layout of the `speculators` library."""
    inner = {key: value for key, value in CONFIG.items() if key not in OUTER}
    own = {key: CONFIG[key] for key in OUTER if key != "architectures"}
    named = {name.replace("midlayer.", "layers.0."): values for name, values in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    tiny.write_safetensors(folder / "model.safetensors", named)
    values = own | {"speculators_model_type": "eagle3", "transformer_layer_config": inner} | config
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    return folder
