"""The hyperparameters of a decoder, from GGUF metadata or from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.diffusion.config import is_diffusion
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.rope import rope_of
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.hyperparameters import config_keys, gguf_keys, tensors
from localspec.formats.hyperparameters.families import DEFAULTS
from localspec.formats.hyperparameters.tensors import ROPE_FACTORS
from localspec.formats.values import (
    MAX_CONTEXT,
    MAX_LAYERS,
    alike,
    flag,
    number,
    shown,
    text,
    whole,
    wrong,
)

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")  # torch reads them from GGUF, and GGUF can be written
FROM_GGUF = (*LLAMA_LIKE, "granite", "olmo2", "smollm3")
FROM_FOLDERS = (*FROM_GGUF, "phi3")
INTERLEAVED = ("llama", "granite", "smollm3")  # as llama.cpp stores them
GGUF_ROPES = ("none", "linear", "yarn", "llama3")  # the last is in the tensor `rope_freqs`
EVERY = 4  # SmolLM3's layers between two without positions, that one included


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder with grouped-query attention, rotary positions and a gated feed-forward network.

    `frequencies` [rotated width / 2] are the rotary ones, for the first columns of each head; `rope_scale`
    multiplies cosines and sines. `interleaved` tells whether the rows of a query or key head are paired as
    (0, 1), (2, 3) ..., as llama.cpp stores Llama models, or as first half and second half. Layers in
    `unrotated` have no positions. With `norms_after` the norms of a layer follow its attention and its
    feed-forward network instead of preceding them, and those of queries and keys are over all heads. A `tied`
    head is the embedding. The scales are of the embedding, of what a layer adds, of attention scores (None:
    head_width ** -0.5), and of the logits.
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
    tied: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float | None = None
    logit_scale: float = 1.0


def of_path(path: Path) -> Architecture:
    """Read the architecture of a GGUF file or of a Hugging Face folder, with the errors of both."""
    return of_folder(SafetensorsFolder.open(path)) if path.is_dir() else of_gguf(GgufFile.open(path))


def gguf_refusal(path: Path) -> str | None:
    """Return why torch cannot read a GGUF file, None if it can."""
    try:
        family = of_gguf(GgufFile.open(path)).family
    except UnsupportedModel as error:
        return error.message
    return (
        None if family in LLAMA_LIKE else f"`{path}` is a `{family}` model, which torch cannot read as GGUF"
    )


def of_gguf(file: GgufFile) -> Architecture:
    """Read the architecture from GGUF metadata, and check that the tensors are those it stands for.

    Raises UnsupportedModel for metadata and tensors that localspec does not compute, and BrokenModel.
    """
    family = _supported(file.architecture, FROM_GGUF, str(file.path))
    layers = whole(file, "block_count", most=MAX_LAYERS)
    context = whole(file, "context_length", most=MAX_CONTEXT)
    width, heads = whole(file, "embedding_length"), alike(file, "attention.head_count", layers)
    head_width = whole(file, "attention.key_length", width // heads)
    interleaved = family in INTERLEAVED
    gguf_keys.check(file, family, width=width, head_width=head_width, interleaved=interleaved)
    _reject_window(file, context)
    key_heads = alike(file, "attention.head_count_kv", layers, heads)
    _check_heads(file, heads, key_heads, head_width)
    epsilon = _epsilon(file)
    rope = rope_of(rope_config(file), head_width, context, str(file.path))
    tensors.check_gguf(file, tensors.Heads(family, layers, width, heads, key_heads, head_width))
    return Architecture(
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        context=rope.context,
        epsilon=epsilon,
        frequencies=_divided(rope.frequencies, file),  # by Llama 3's factors for a long context
        rope_scale=rope.scale * number(file, "rope.scaling.attn_factor", 1.0, least=1e-6),
        interleaved=interleaved,
        unrotated=_unrotated_of_gguf(file, family, layers),
        norms_after=family == "olmo2",
        tied="output.weight" not in file.tensors,
        **(_scales(file, GRANITE_GGUF) if family == "granite" else {}),
    )


def _epsilon(file: GgufFile) -> float:
    """Return the epsilon of the norms, which must be RMS norms."""
    key, other = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
    if file.value(key) is None and (found := file.value(other)) is not None:
        raise gguf_keys.refused(file, other, found)
    return number(file, key, most=1.0)


def _unrotated_of_gguf(file: GgufFile, family: str, layers: int) -> frozenset[int]:
    """Return the layers without positions: every fourth of SmolLM3, all of a Granite model that says so."""
    if family == "granite" and not flag(file, "rope.scaling.finetuned", True):
        return frozenset(range(layers))
    return frozenset(range(EVERY - 1, layers, EVERY) if family == "smollm3" else ())


def _check_heads(source: GgufFile | SafetensorsFolder, heads: int, key_heads: int, head_width: int) -> None:
    """Raise UnsupportedModel for heads that share keys unevenly, or whose columns make no pairs."""
    if heads % key_heads:
        raise UnsupportedModel(
            f"`{source.path}` has {heads} heads for {key_heads} heads of keys, which do not divide them"
        )
    if head_width % 2:
        raise UnsupportedModel(f"`{source.path}` has heads of {head_width} columns, which make no pairs")


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


def rope_config(file: GgufFile) -> dict[str, Any]:
    """Return the rotary embedding of a GGUF as a config.json has it, its key `rope_scaling` null for none.

    As in llama.cpp a factor without a kind stretches positions linearly, and a factor of 0 does nothing.
    """
    kind = text(file, "rope.scaling.type", "linear")
    if kind not in GGUF_ROPES:
        raise gguf_keys.refused(file, "rope.scaling.type", kind)
    config: dict[str, Any] = {
        "rope_theta": number(file, "rope.freq_base", 10000.0, least=1.0),
        "rope_scaling": None,
    }
    factor = number(file, "rope.scaling.factor", number(file, "rope.scale_linear", 0.0)) or 1.0
    if kind not in ("linear", "yarn") or factor == 1.0:
        return config
    scaling = {"rope_type": kind, "factor": factor}
    original = file.value("rope.scaling.original_context_length")
    if kind == "yarn" and original is not None:
        scaling["original_max_position_embeddings"] = original
    return config | {"rope_scaling": scaling}


def of_folder(folder: SafetensorsFolder) -> Architecture:
    """Read the architecture from a config.json, and check that the tensors are those it stands for.

    Raises UnsupportedModel for values and tensors that localspec does not compute, and BrokenModel.
    """
    path = str(folder.path)
    family = _supported(folder.architecture, FROM_FOLDERS, path)
    default = DEFAULTS[family]
    context = whole(folder, "max_position_embeddings", default.context, most=MAX_CONTEXT)
    width, heads = whole(folder, "hidden_size"), whole(folder, "num_attention_heads")
    layers = whole(folder, "num_hidden_layers", most=MAX_LAYERS)
    head_width = whole(folder, "head_dim", default.head_width or width // heads)
    key_heads = _key_heads(folder, heads, default.key_heads)
    config_keys.check(folder, family, width, head_width)
    config_keys.check_window(folder, family, layers, context)
    _check_heads(folder, heads, key_heads, head_width)
    epsilon = number(folder, "rms_norm_eps", default.epsilon, most=1.0)
    rope = rope_of(folder.config, head_width, context, path, family)
    # null is false there, and an absent key the family's default
    tied = flag(folder, "tie_word_embeddings", default.tied and "tie_word_embeddings" not in folder.config)
    tensors.check_folder(
        folder, tensors.Heads(family, layers, width, heads, key_heads, head_width), tied=tied
    )
    return Architecture(
        family=family,
        layers=layers,
        width=width,
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        context=rope.context,
        epsilon=epsilon,
        frequencies=rope.frequencies,
        rope_scale=rope.scale,
        unrotated=_unrotated(folder, layers) if family == "smollm3" else frozenset(),
        norms_after=family == "olmo2",
        tied=tied,
        **({"attention_scale": 1.0} | _scales(folder, GRANITE_FOLDER) if family == "granite" else {}),
    )


def _key_heads(folder: SafetensorsFolder, heads: int, default: int | None) -> int:
    """Return the heads of keys: those of the family if the key is absent, as many as heads if it is null."""
    absent = "num_key_value_heads" not in folder.config
    return whole(folder, "num_key_value_heads", default if absent and default else heads)


def _unrotated(folder: SafetensorsFolder, layers: int) -> frozenset[int]:
    """Return SmolLM3's layers without positions: those listed with 0, else every fourth."""
    listed = folder.value("no_rope_layers")
    if listed is None:
        every = whole(folder, "no_rope_layer_interval", EVERY)
        return frozenset(range(every - 1, layers, every))
    if not isinstance(listed, list) or len(listed) < layers:
        raise wrong(folder, "no_rope_layers", shown(listed), f"a list for {layers} layers")
    return frozenset(layer for layer, rotated in enumerate(listed[:layers]) if not rotated)


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
    """Return Granite's multipliers; the one of the logits is a divisor. In a GGUF file 0 stands for none."""
    unset = (None, 0) if isinstance(source, GgufFile) else (None,)
    present = {name: key for name, key in keys.items() if source.value(key) not in unset}
    scales = {name: number(source, key, least=1e-9) for name, key in present.items()}
    return scales | {"logit_scale": 1 / scales.get("logit_scale", 1.0)}


def _supported(family: str, known: Sequence[str], path: str) -> str:
    if is_diffusion(family):
        raise UnsupportedModel(
            f"`{path}` is a diffusion language model, `{printable(family)}`, which no graph computes",
            "Type `--engine diffusion`, or leave `--engine` out",
        )
    if family not in known:
        raise UnsupportedModel(
            f"`{path}` is a `{printable(family)}` model, which cannot be imported",
            f"Supported families: {', '.join(known)}; others run from a ready OpenVINO folder",
        )
    return family


def _reject_window(file: GgufFile, context: int) -> None:
    """Raise UnsupportedModel for a sliding window shorter than the context."""
    window = whole(file, "attention.sliding_window", 0, least=0, most=MAX_CONTEXT)
    if 0 < window < context:
        raise UnsupportedModel(
            f"`{file.path}` uses a sliding window of {window}, which cannot be imported yet"
        )
