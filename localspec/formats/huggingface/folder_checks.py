"""Checks of a folder that transformers makes with a mere warning, or not at all, when it loads one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.graph.rope import scaling_of
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.hyperparameters.tensors import FLOATS, another_head, head_is_embedding
from localspec.formats.values import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, Values, number, shown, whole

OTHER = "Choose another model, or another engine: `localspec parts engines`"
NUMBERS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "rope_theta")
PACKED = 16  # weights that a stored number holds at most
ROTARY = "inv_freq"  # rotary frequencies, which old files hold and all libraries compute


def check_tensors(folder: SafetensorsFolder, config: Any, info: Mapping[str, Any]) -> None:
    """Raise an error for tensors that transformers ignored, or drew at random, with a mere warning."""
    unknown = sorted(name for name in info["unexpected_keys"] if not name.endswith(ROTARY))
    if unknown:
        raise UnsupportedModel(
            f"`{folder.path}` has the tensor `{printable(unknown[0])}`, which its family does not have", OTHER
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise BrokenModel(f"`{folder.path}` has no tensor `{missing[0]}`", "Download it again")
    both = {"lm_head.weight", "model.embed_tokens.weight"} <= folder.tensors.keys()
    if both and config.tie_word_embeddings and not head_is_embedding(folder):
        raise another_head(folder)


def check_quantization(folder: SafetensorsFolder) -> None:
    """Raise UnsupportedModel for quantized weights that transformers would take for plain ones."""
    found = folder.value("quantization_config")
    if found and not _is_known(found):
        method = found.get("quant_method") if isinstance(found, Mapping) else found
        raise UnsupportedModel(
            f"`quantization_config` of `{folder.path}` is of the kind `{printable(shown(method))}`, "
            "which transformers does not know",
            OTHER,
        )
    for name, info in folder.tensors.items():
        if not found and name.endswith("weight") and info.kind not in FLOATS:
            raise UnsupportedModel(
                f"`{printable(name)}` in `{folder.path}` has the tensor type {printable(info.kind)}",
                OTHER,
            )


def _is_known(quantization: Any) -> bool:
    """Return whether transformers uses a `quantization_config`, rather than go on without it."""
    from transformers.quantizers.auto import AutoHfQuantizer

    try:
        return isinstance(quantization, Mapping) and bool(AutoHfQuantizer.supports_quant_method(quantization))
    except (ValueError, TypeError, AttributeError):
        return False


def check_values(config: Values) -> None:
    """Raise an error for numbers that transformers does not check before it computes with them."""
    for key in NUMBERS:
        number(config, key, 1.0)


def use_rope_parameters(folder: SafetensorsFolder, config: Any) -> None:
    """Put rotary positions where transformers 4 reads them; a config of transformers 5 has them elsewhere."""
    inner = folder.value("text_config")
    for part, given in ((config, folder.config), (config.get_text_config(decoder=True), inner)):
        if not isinstance(given, Mapping) or not given.get("rope_parameters"):
            continue
        values = scaling_of(given, str(folder.path))
        for key in ("rope_theta", "partial_rotary_factor"):
            if values.get(key) is not None:
                setattr(part, key, values.pop(key))
        plain = values.get("rope_type", "default") == "default"
        part.rope_scaling = None if plain else values


def check_sizes(folder: SafetensorsFolder, config: Values) -> None:
    """Raise BrokenModel for a config of a far larger model than the tensors: all of it would be allocated."""
    stored = sum(math.prod(info.shape) for info in folder.tensors.values())
    most = stored * (PACKED if folder.value("quantization_config") else 2)
    width, layers = _size(config, "hidden_size"), _size(config, "num_hidden_layers", MAX_LAYERS)
    heads = _size(config, "num_attention_heads") * _size(config, "head_dim")
    for key, values in (
        ("vocab_size", width * _size(config, "vocab_size", MAX_TOKENS)),
        ("intermediate_size", width * layers * _size(config, "intermediate_size")),
        ("head_dim", width * layers * heads),
    ):
        if values > most:
            raise BrokenModel(
                f"`{key}` of `{folder.path}` stands for {values:,} weights and its files have {stored:,}",
                "Download it again",
            )


def _size(config: Values, key: str, most: int = MAX_WIDTH) -> int:
    """Return a size that a config gives; 1, which allows everything, if it gives none or one by layer."""
    return 1 if isinstance(config.value(key), list) else whole(config, key, 1, most=most)
