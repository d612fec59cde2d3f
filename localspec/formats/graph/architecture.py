"""The hyperparameters of a decoder, from GGUF metadata or from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.rope import rope_of
from localspec.formats.huggingface.safetensors import SafetensorsFolder

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")  # torch reads them from GGUF, and GGUF can be written
FROM_GGUF = (*LLAMA_LIKE, "granite", "olmo2", "smollm3")
FROM_FOLDERS = (*FROM_GGUF, "phi3")
INTERLEAVED = ("llama", "granite", "smollm3")  # as llama.cpp stores them
EVERY = 4  # SmolLM3's layers between two without positions, that one included


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
    family = _supported(file.architecture, FROM_GGUF, str(file.path))
    _reject_window(file.value("attention.sliding_window"), _need(file, "context_length"), str(file.path))
    width, heads = int(_need(file, "embedding_length")), int(_need(file, "attention.head_count"))
    head_width = int(file.value("attention.key_length", width // heads))
    rope = rope_of(_rope_config(file), head_width, int(_need(file, "context_length")), str(file.path))
    rates = rope.frequencies
    if "rope_freqs.weight" in file.tensors:  # Llama 3's long context
        rates = (rates / file.raw("rope_freqs.weight").reshape(-1).view(np.float32)).astype(np.float32)
    layers = int(_need(file, "block_count"))
    return Architecture(
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        key_heads=int(file.value("attention.head_count_kv", heads)),
        head_width=head_width,
        context=rope.context,
        epsilon=float(_need(file, "attention.layer_norm_rms_epsilon")),
        frequencies=rates,
        rope_scale=rope.scale,
        interleaved=family in INTERLEAVED,
        unrotated=frozenset(range(EVERY - 1, layers, EVERY) if family == "smollm3" else ()),
        norms_after=family == "olmo2",
        **(_scales(file, GRANITE_GGUF) if family == "granite" else {}),
    )


def _rope_config(file: GgufFile) -> dict[str, Any]:
    """Return the rotary embedding of a GGUF as a config.json has it."""
    kind = file.value("rope.scaling.type")
    if file.value("rope.scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModel(
            f"`{file.path}` scales its attention beside its positions, which is not supported"
        )
    scaling = {
        "type": None if kind == "llama3" else kind,  # which `rope_freqs` holds
        "factor": file.value("rope.scaling.factor"),
        "original_max_position_embeddings": file.value("rope.scaling.original_context_length"),
    }
    config = {"rope_theta": file.value("rope.freq_base", 10000.0)}
    return config | {"rope_scaling": {key: value for key, value in scaling.items() if value is not None}}


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
        **({"attention_scale": 1.0} | _scales(folder, GRANITE_FOLDER) if family == "granite" else {}),
    )


def _unrotated(config: Mapping[str, Any], layers: int) -> frozenset[int]:
    """Return SmolLM3's layers without positions: those listed with 0, else every fourth."""
    listed = config.get("no_rope_layers")
    if listed is None:
        every = int(config.get("no_rope_layer_interval") or EVERY)
        return frozenset(range(every - 1, layers, every))
    return frozenset(layer for layer, rotated in enumerate(listed) if not rotated)


GRANITE_GGUF = {
    "embedding_scale": "embedding_scale",
    "residual_scale": "residual_scale",
    "attention_scale": "attention.scale",
    "logit_scale": "logit_scale",
}
GRANITE_FOLDER = {
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention_scale": "attention_multiplier",
    "logit_scale": "logits_scaling",
}


def _scales(source: GgufFile | SafetensorsFolder, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return Granite's multipliers; the one of the logits is a divisor."""
    found = {name: source.value(key) for name, key in keys.items()}
    scales = {name: float(value) for name, value in found.items() if value is not None}
    return scales | {"logit_scale": 1 / scales.get("logit_scale", 1.0)}


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
