"""The hyperparameters of a decoder, from GGUF metadata or from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.rope import rope_of
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.values import MAX_CONTEXT, MAX_LAYERS, flag, number, whole, wrong

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")  # torch reads them from GGUF, and GGUF can be written
FROM_GGUF = (*LLAMA_LIKE, "granite", "olmo2", "smollm3")
FROM_FOLDERS = (*FROM_GGUF, "phi3")
INTERLEAVED = ("llama", "granite", "smollm3")  # as llama.cpp stores them
ROPE_FACTORS = "rope_freqs.weight"
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
    context = whole(file, "context_length", most=MAX_CONTEXT)
    _reject_window(file, "attention.sliding_window", context)
    width, heads = whole(file, "embedding_length"), whole(file, "attention.head_count")
    head_width = whole(file, "attention.key_length", width // heads)
    rope = rope_of(_rope_config(file), head_width, context, str(file.path))
    layers = whole(file, "block_count", most=MAX_LAYERS)
    return Architecture(
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        key_heads=whole(file, "attention.head_count_kv", heads),
        head_width=head_width,
        context=rope.context,
        epsilon=number(file, "attention.layer_norm_rms_epsilon", most=1.0),
        frequencies=_divided(rope.frequencies, file),  # by Llama 3's factors for a long context
        rope_scale=rope.scale,
        interleaved=family in INTERLEAVED,
        unrotated=frozenset(range(EVERY - 1, layers, EVERY) if family == "smollm3" else ()),
        norms_after=family == "olmo2",
        **(_scales(file, GRANITE_GGUF) if family == "granite" else {}),
    )


def _divided(rates: NDArray[np.float32], file: GgufFile) -> NDArray[np.float32]:
    """Return rotary frequencies divided by the factors that the file has for them, if any."""
    info = file.tensors.get(ROPE_FACTORS)
    if info is None:
        return rates
    if info.kind != "F32" or info.size != rates.nbytes:
        raise BrokenModel(
            f"`{ROPE_FACTORS}` of `{file.path}` is not {len(rates)} numbers", "Download it again"
        )
    factors = file.raw(ROPE_FACTORS).reshape(-1).view(np.float32)
    with np.errstate(all="ignore"):
        divided = (rates / factors).astype(np.float32)
    if not (factors > 0).all() or not np.isfinite(divided).all():
        raise BrokenModel(f"`{ROPE_FACTORS}` of `{file.path}` holds wrong numbers", "Download it again")
    return divided


def _rope_config(file: GgufFile) -> dict[str, Any]:
    """Return the rotary embedding of a GGUF as a config.json has it."""
    kind = file.value("rope.scaling.type")
    if number(file, "rope.scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModel(
            f"`{file.path}` scales its attention beside its positions, which is not supported"
        )
    scaling = {
        "type": None if kind == "llama3" else kind,  # which `rope_freqs` holds
        "factor": file.value("rope.scaling.factor"),
        "original_max_position_embeddings": file.value("rope.scaling.original_context_length"),
    }
    config = {"rope_theta": number(file, "rope.freq_base", 10000.0, least=1.0)}
    return config | {"rope_scaling": {key: value for key, value in scaling.items() if value is not None}}


def of_folder(folder: SafetensorsFolder) -> Architecture:
    """Read the architecture from a Hugging Face config.json; raises UnsupportedModel and BrokenModel."""
    path, config = str(folder.path), folder.config
    family = _supported(folder.architecture, FROM_FOLDERS, path)
    context = whole(folder, "max_position_embeddings", most=MAX_CONTEXT)
    if flag(folder, "use_sliding_window", family in ("mistral", "phi3")):
        _reject_window(folder, "sliding_window", context)
    width, heads = whole(folder, "hidden_size"), whole(folder, "num_attention_heads")
    layers = whole(folder, "num_hidden_layers", most=MAX_LAYERS)
    head_width = whole(folder, "head_dim", width // heads)
    rope = rope_of(config, head_width, context, path)
    return Architecture(
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        key_heads=whole(folder, "num_key_value_heads", heads),
        head_width=head_width,
        context=rope.context,
        epsilon=number(folder, "rms_norm_eps", most=1.0),
        frequencies=rope.frequencies,
        rope_scale=rope.scale,
        unrotated=_unrotated(folder, layers) if family == "smollm3" else frozenset(),
        norms_after=family == "olmo2",
        **({"attention_scale": 1.0} | _scales(folder, GRANITE_FOLDER) if family == "granite" else {}),
    )


def _unrotated(folder: SafetensorsFolder, layers: int) -> frozenset[int]:
    """Return SmolLM3's layers without positions: those listed with 0, else every fourth."""
    listed = folder.value("no_rope_layers")
    if listed is None:
        every = whole(folder, "no_rope_layer_interval", EVERY)
        return frozenset(range(every - 1, layers, every))
    if not isinstance(listed, list):
        raise wrong(folder, "no_rope_layers", listed, "a list")
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
    present = {name: key for name, key in keys.items() if source.value(key) is not None}
    scales = {name: number(source, key, least=1e-9) for name, key in present.items()}
    return scales | {"logit_scale": 1 / scales.get("logit_scale", 1.0)}


def _supported(family: str, known: Sequence[str], path: str) -> str:
    if family not in known:
        raise UnsupportedModel(
            f"`{path}` is a `{printable(family)}` model, which cannot be imported",
            f"Supported families: {', '.join(known)}; others run from a ready OpenVINO folder",
        )
    return family


def _reject_window(source: GgufFile | SafetensorsFolder, key: str, context: int) -> None:
    """Raise UnsupportedModel for a sliding window shorter than the context."""
    window = whole(source, key, 0, least=0, most=MAX_CONTEXT)
    if 0 < window < context:
        raise UnsupportedModel(
            f"`{source.path}` uses a sliding window of {window}, which cannot be imported yet"
        )
