"""The shape of a diffusion language model, from the config.json of its Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from localspec.errors import UnsupportedModel, printable
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.values import MAX_CONTEXT, MAX_LAYERS, MAX_TOKENS, flag, number, shown, whole

OTHER = "Choose another model; code that comes with a model is never run"


class Family(NamedTuple):
    """A family by its `model_type`: what its files leave out, and how its models read a text.

    `mask` and `block` are those of the published models. `causal`: a text in blocks, none of which sees later
    ones; else all tokens see one another. `shifted`: a token is predicted in the place before it.
    """

    mask: int | None
    block: int | None
    causal: bool
    shifted: bool = False
    query_norm: bool = False
    bias: bool = False


OWN = "block_llama"  # what localspec's training writes: Llama's layers, read in blocks
FAMILIES = {
    "sdar": Family(151669, 4, causal=True, query_norm=True),
    "dream": Family(151666, 32, causal=False, shifted=True, bias=True),
    "llada": Family(126336, 32, causal=False),
    OWN: Family(None, None, causal=True),
}
# by key: the values with which a model computes as it does here
COMPUTED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": (None, "silu"),
    "rope_scaling": (None,),
    "use_sliding_window": (None, False),
    "mlp_bias": (None, False),
    "quantization_config": (None,),
    "block_type": (None, "llama"),
    "activation_type": (None, "silu", "swiglu"),
    "layer_norm_type": (None, "rms"),
    "rope": (None, True),
    "alibi": (None, False),
    "attention_layer_norm": (None, False),
    "include_bias": (None, False),
    "include_qkv_bias": (None, False),
    "scale_logits": (None, False),
    "input_emb_norm": (None, False),
    "clip_qkv": (None,),
    "block_group_size": (None, 1),
    "multi_query_attention": (None, False),
    "num_experts": (None, 0),
}
LLADA = {  # LLaDA's names of the keys
    "num_hidden_layers": "n_layers",
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "mlp_hidden_size",
    "max_position_embeddings": "max_sequence_length",
    "tie_word_embeddings": "weight_tying",
}


@dataclass(frozen=True, slots=True)
class DiffusionShape:
    """The numbers of a decoder with grouped-query attention, rotary positions and a gated network.

    `mask`, `block`, `causal` and `shifted` are those of a BlockSession.
    """

    family: str
    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int
    inner: int
    vocab: int
    context: int
    epsilon: float
    base: float
    query_norm: bool
    bias: bool
    tied: bool
    mask: int
    block: int
    causal: bool
    shifted: bool


def is_diffusion(model_type: str) -> bool:
    """Return whether a `model_type` is that of a diffusion language model."""
    return model_type.lower() in FAMILIES


def read(path: Path) -> DiffusionShape:
    """Return the shape of the model in a folder.

    Raises UnsupportedModel for one that is no diffusion model, or that computes otherwise than it is done
    here, and BrokenModel for numbers that cannot be.
    """
    folder = SafetensorsFolder.open(path)
    name = folder.architecture.lower()
    if name not in FAMILIES:
        raise UnsupportedModel(
            f"`{path}` is a `{printable(folder.architecture)}` model, and none of {', '.join(FAMILIES)}",
            "Run it with another engine: `localspec parts engines`",
        )
    family = FAMILIES[name]
    for key, allowed in COMPUTED.items():
        if (found := folder.value(key)) not in allowed:
            raise UnsupportedModel(
                f"`{key}` of `{path}` is `{printable(shown(found))}`, which is not supported", OTHER
            )
    return _shape(_Renamed(folder, LLADA if name == "llada" else {}), name, family)


class _Renamed:
    """The values of a folder under the usual names."""

    def __init__(self, folder: SafetensorsFolder, names: Mapping[str, str]) -> None:
        self.path = folder.path
        self._folder, self._names = folder, names

    def value(self, key: str, default: Any = None) -> Any:
        return self._folder.value(self._names.get(key, key), default)


def _shape(source: _Renamed, name: str, family: Family) -> DiffusionShape:
    width = whole(source, "hidden_size")
    heads = whole(source, "num_attention_heads", most=width)
    head_width = whole(source, "head_dim", width // heads)
    key_heads = whole(source, "num_key_value_heads", heads, most=heads)
    if heads % key_heads or head_width % 2:
        raise UnsupportedModel(
            f"`{source.path}` has {heads} heads of width {head_width} over {key_heads} of keys", OTHER
        )
    vocab = whole(source, "embedding_size" if name == "llada" else "vocab_size", most=MAX_TOKENS)
    return DiffusionShape(
        family=name,
        layers=whole(source, "num_hidden_layers", most=MAX_LAYERS),
        width=width,
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        inner=whole(source, "intermediate_size"),
        vocab=vocab,
        context=whole(source, "max_position_embeddings", most=MAX_CONTEXT),
        epsilon=number(source, "rms_norm_eps", 1e-6),
        base=number(source, "rope_theta", 10000.0),
        query_norm=family.query_norm,
        bias=family.bias or flag(source, "attention_bias"),
        tied=flag(source, "tie_word_embeddings"),
        mask=whole(source, "mask_token_id", family.mask, least=0, most=vocab - 1),
        block=whole(source, "block_size", family.block, most=MAX_CONTEXT),
        causal=family.causal,
        shifted=family.shifted,
    )
