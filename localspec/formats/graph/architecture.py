"""The hyperparameters of a decoder, from GGUF metadata or from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.rope import frequencies, rope_of
from localspec.formats.huggingface.safetensors import SafetensorsFolder

KNOWN = ("llama", "mistral", "qwen2", "qwen3")
FROM_FOLDERS = (*KNOWN, "granite", "olmo2", "phi3", "smollm3")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with grouped-query attention, rotary positions and a gated feed-forward network.

    `frequencies` [rotated width / 2] are the rotary ones, for the first columns of each head; `rope_scale`
    multiplies cosines and sines. `interleaved` tells whether the rows of a query or key head are paired as
    (0, 1), (2, 3) ..., as llama.cpp stores Llama models, or as first half and second half. Layers in
    `unrotated` have no positions. With `norms_after` the norms of a layer follow its attention and its
    feed-forward network instead of preceding them, and those of queries and keys are over all heads. The
    scales are of the embedding, of what a layer adds, of attention scores (None: head_width ** -0.5), and of
    the logits.
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
    rope_scale: float = 1.0
    unrotated: frozenset[int] = frozenset()
    norms_after: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float | None = None
    logit_scale: float = 1.0


def of_gguf(file: GgufFile) -> Architecture:
    """Read the architecture from GGUF metadata; raises UnsupportedModel and BrokenModel."""
    family = _supported(file.architecture, KNOWN, str(file.path))
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
    path, config = str(folder.path), folder.config
    family = _supported(folder.architecture, FROM_FOLDERS, path)
    if config.get("use_sliding_window", family in ("mistral", "phi3")):
        _reject_window(config.get("sliding_window"), _need(folder, "max_position_embeddings"), path)
    width, heads = int(_need(folder, "hidden_size")), int(_need(folder, "num_attention_heads"))
    layers = int(_need(folder, "num_hidden_layers"))
    head_width = int(config.get("head_dim") or width // heads)
    rope = rope_of(config, head_width, int(_need(folder, "max_position_embeddings")), path)
    return Architecture(
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        key_heads=int(config.get("num_key_value_heads") or heads),
        head_width=head_width,
        context=rope.context,
        epsilon=float(_need(folder, "rms_norm_eps")),
        frequencies=rope.frequencies,
        rope_scale=rope.scale,
        unrotated=_unrotated(config, layers) if family == "smollm3" else frozenset(),
        norms_after=family == "olmo2",
        **(_granite_scales(config) if family == "granite" else {}),
    )


def _unrotated(config: Mapping[str, Any], layers: int) -> frozenset[int]:
    """Return SmolLM3's layers without positions: those listed with 0, else every fourth."""
    listed = config.get("no_rope_layers")
    if listed is None:
        every = int(config.get("no_rope_layer_interval") or 4)
        return frozenset(range(every - 1, layers, every))
    return frozenset(layer for layer, rotated in enumerate(listed) if not rotated)


def _granite_scales(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return Granite's multipliers; the one of the logits is a divisor."""
    return {
        "embedding_scale": float(config.get("embedding_multiplier") or 1.0),
        "residual_scale": float(config.get("residual_multiplier") or 1.0),
        "attention_scale": float(config.get("attention_multiplier") or 1.0),
        "logit_scale": 1 / float(config.get("logits_scaling") or 1.0),
    }


def _supported(family: str, known: Sequence[str], path: str) -> str:
    if family not in known:
        raise UnsupportedModel(
            f"`{path}` is a `{family}` model, which cannot be imported",
            f"Supported families: {', '.join(known)}; others run from a ready OpenVINO folder",
        )
    return family


def _need(source: GgufFile | SafetensorsFolder, key: str) -> Any:
    value = source.value(key)
    if value is None:
        raise BrokenModel(f"`{source.path}` has no `{key}`", "Download it again")
    return value


def _reject_window(window: Any, context: int, path: str) -> None:
    """Raise UnsupportedModel for a sliding window shorter than the context."""
    if window and window < context:
        raise UnsupportedModel(f"`{path}` uses a sliding window of {window}, which cannot be imported yet")


def _reject_scaling(kind: Any, path: str) -> None:
    if kind not in (None, "none", "default", "llama3"):
        raise UnsupportedModel(f"`{path}` uses the RoPE scaling `{kind}`, which cannot be imported yet")
