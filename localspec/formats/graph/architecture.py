"""The hyperparameters of a decoder, from GGUF metadata or from a Hugging Face config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.huggingface.safetensors import SafetensorsFolder

KNOWN = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with grouped-query attention, rotary positions and a gated feed-forward network.

    `frequencies` [head_width / 2] are the rotary ones. `interleaved` tells whether the rows of a query or key
    head are paired as (0, 1), (2, 3) ..., as llama.cpp stores Llama models, or as first half and second half.
    """

    family: str
    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    context: int
    epsilon: float
    frequencies: NDArray[np.float32]
    interleaved: bool = False


def of_gguf(file: GgufFile) -> Architecture:
    """Read the architecture from GGUF metadata; raises UnsupportedModel and BrokenModel."""
    family = _supported(file.architecture, str(file.path))
    _reject_scaling(file.value("rope.scaling.type"), str(file.path))
    _reject_window(file.value("attention.sliding_window"), _need(file, "context_length"), str(file.path))
    width, heads = int(_need(file, "embedding_length")), int(_need(file, "attention.head_count"))
    head_width = int(file.value("attention.key_length", width // heads))
    rates = frequencies(float(file.value("rope.freq_base", 10000.0)), head_width)
    if "rope_freqs.weight" in file.tensors:  # Llama 3's long context
        rates = rates / file.raw("rope_freqs.weight").reshape(-1).view(np.float32)
    return Architecture(
        family=family,
        layers=int(_need(file, "block_count")),
        width=width,
        heads=heads,
        key_heads=int(file.value("attention.head_count_kv", heads)),
        head_width=head_width,
        context=int(_need(file, "context_length")),
        epsilon=float(_need(file, "attention.layer_norm_rms_epsilon")),
        frequencies=rates.astype(np.float32),
        interleaved=family == "llama",
    )


def of_folder(folder: SafetensorsFolder) -> Architecture:
    """Read the architecture from a Hugging Face config.json; raises UnsupportedModel and BrokenModel."""
    family = _supported(folder.architecture, str(folder.path))
    config = folder.config
    if config.get("use_sliding_window", family == "mistral"):
        _reject_window(
            config.get("sliding_window"), _need(folder, "max_position_embeddings"), str(folder.path)
        )
    width, heads = int(_need(folder, "hidden_size")), int(_need(folder, "num_attention_heads"))
    head_width = int(config.get("head_dim") or width // heads)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    base = float(config.get("rope_theta") or scaling.get("rope_theta") or 10000.0)
    return Architecture(
        family=family,
        layers=int(_need(folder, "num_hidden_layers")),
        width=width,
        heads=heads,
        key_heads=int(config.get("num_key_value_heads") or heads),
        head_width=head_width,
        context=int(_need(folder, "max_position_embeddings")),
        epsilon=float(_need(folder, "rms_norm_eps")),
        frequencies=scaled(frequencies(base, head_width), scaling, str(folder.path)),
    )


def _supported(family: str, path: str) -> str:
    if family not in KNOWN:
        raise UnsupportedModel(
            f"`{path}` is a `{family}` model, which cannot be imported",
            f"Supported families: {', '.join(KNOWN)}; others run from a ready OpenVINO folder",
        )
    return family


def _need(source: GgufFile | SafetensorsFolder, key: str) -> Any:
    value = source.value(key)
    if value is None:
        raise BrokenModel(f"`{source.path}` has no `{key}`", "Download it again")
    return value


def frequencies(base: float, head_width: int) -> NDArray[np.float64]:
    """Return base ** (-2i / head_width) (RoFormer, Su et al. 2021, equation 15)."""
    return base ** (-np.arange(0, head_width, 2, dtype=np.float64) / head_width)


def scaled(rates: NDArray[np.float64], scaling: Mapping[str, Any], path: str) -> NDArray[np.float32]:
    """Apply `rope_scaling` to the frequencies: none, or Llama 3.1's scaling of the low ones."""
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind != "llama3":
        _reject_scaling(kind, path)
        return rates.astype(np.float32)
    low, high, original = (
        float(scaling[key])
        for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    )
    turns = original * rates / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    stretched = (1 - smooth) * rates / float(scaling["factor"]) + smooth * rates
    return stretched.astype(np.float32)


def _reject_window(window: Any, context: int, path: str) -> None:
    """Raise UnsupportedModel for a sliding window shorter than the context."""
    if window and window < context:
        raise UnsupportedModel(f"`{path}` uses a sliding window of {window}, which cannot be imported yet")


def _reject_scaling(kind: Any, path: str) -> None:
    if kind not in (None, "none", "default", "llama3"):
        raise UnsupportedModel(f"`{path}` uses the RoPE scaling `{kind}`, which cannot be imported yet")
