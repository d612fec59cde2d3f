"""The files of a head: the layout that EAGLE-3 publishes, and that of the `speculators` library."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats import torch_checkpoint
from localspec.formats.files import read_json
from localspec.formats.graph.rope import rope_of
from localspec.formats.huggingface.safetensors import SafetensorsFolder, write_file
from localspec.formats.values import MAX_CONTEXT, MAX_TOKENS, Values, flag, number, text, whole

Tensor = NDArray[np.float32]

CONFIG, WEIGHTS, CHECKPOINT = "config.json", "model.safetensors", "pytorch_model.bin"
TAPS = "eagle_aux_hidden_state_layer_ids"  # after so many layers, as vLLM counts
OWN = "localspec"  # key of what localspec notes in a config.json
LAYER, SPECULATORS_LAYER = "midlayer.", "layers.0."
DEFAULT_CONTEXT = 2048

# Names of a layer's tensors, and the sizes of their rows and columns as `HeadShape.sizes` has them.
MATRICES = {
    "self_attn.q_proj.weight": ("queries", "pair"),
    "self_attn.k_proj.weight": ("keys", "pair"),
    "self_attn.v_proj.weight": ("keys", "pair"),
    "self_attn.o_proj.weight": ("width", "queries"),
    "mlp.gate_proj.weight": ("inner", "width"),
    "mlp.up_proj.weight": ("inner", "width"),
    "mlp.down_proj.weight": ("width", "inner"),
}
NORMS = ("hidden_norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight")
MATCHED = {"d2t", "t2d"}  # which target tokens the head's rows are
UNCOMPUTED = ("fc_norm", "norm_before_fc", "norm_output", "attention_bias", "mlp_bias")


@dataclass(frozen=True, eq=False)
class HeadShape:
    """The hyperparameters of a head.

    `width` is that of its own states and of the target's embedding, `tapped_width` that of the target's
    states, which are read after each of the layers `taps` (a number of layers). `vocab` is the target's,
    `kept` the number of tokens that the head can guess. `frequencies` [head_width / 2] and `rope_scale` are
    those of rotary positions, whose base is `base`. With `norms_residual` attention is added to the
    normalized states.
    """

    width: int
    inner: int
    heads: int
    key_heads: int
    head_width: int
    epsilon: float
    vocab: int
    kept: int
    taps: tuple[int, ...]
    tapped_width: int
    context: int
    base: float
    frequencies: Tensor
    rope_scale: float = 1.0
    norms_residual: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of tensors by the names that MATRICES has."""
        return {
            "width": self.width,
            "pair": 2 * self.width,
            "inner": self.inner,
            "queries": self.heads * self.head_width,
            "keys": self.key_heads * self.head_width,
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of the head, by its published name."""
        sizes = self.sizes
        found: dict[str, tuple[int, ...]] = {
            f"{LAYER}{name}": (sizes[rows], sizes[columns]) for name, (rows, columns) in MATRICES.items()
        }
        found |= {f"{LAYER}{name}": (self.width,) for name in NORMS}
        found |= {"fc.weight": (self.width, len(self.taps) * self.tapped_width), "norm.weight": (self.width,)}
        return found | {"lm_head.weight": (self.kept, self.width)}


@dataclass(frozen=True, eq=False)
class Head:
    """A head: its shape, its tensors by their published names, and the target tokens of its rows.

    `tokens` [kept] int64 are in the order of the rows. `embedding` [vocab, width] is None where it is the
    target's. `about` is what localspec noted: the target, its tokenizer's digest, and the card.
    """

    shape: HeadShape
    tensors: dict[str, Tensor]
    tokens: NDArray[np.int64]
    embedding: Tensor | None = None
    about: dict[str, Any] = field(default_factory=dict)


def is_head(folder: Path) -> bool:
    """Return whether a folder holds a head by its config.json."""
    file = folder / CONFIG
    if not file.is_file():
        return False
    config = read_json(file)
    named = config.get("speculators_model_type", config.get("architectures"))
    return "eagle3" in str(named).lower() or OWN in config


def read(folder: Path, layers: int = 0) -> Head:
    """Read the head in a folder; `layers` of its target are needed where the config names none.

    Raises BrokenModel for files that are damaged or do not fit each other, UnsupportedModel for a head that
    localspec does not compute.
    """
    shape = read_shape(folder, layers)
    tensors = _tensors(folder)
    embedding = tensors.pop("embed_tokens.weight", None)
    expected = shape.tensors()
    for name, size in expected.items():
        if name not in tensors:
            raise BrokenModel(f"`{folder}` has no tensor `{name}`", "Download it again")
        if tensors[name].shape != size:
            found = list(tensors[name].shape)
            raise BrokenModel(
                f"`{name}` of `{folder}` is {found}, expected {list(size)}", "Download it again"
            )
        if not np.isfinite(tensors[name]).all():
            raise BrokenModel(
                f"`{name}` of `{folder}` holds numbers that are not finite", "Download it again"
            )
    if unknown := sorted(tensors.keys() - expected.keys() - MATCHED):
        raise UnsupportedModel(
            f"`{folder}` has the tensor `{printable(unknown[0])}`, which localspec does not compute",
            "Only heads of EAGLE-3 with one layer are read",
        )
    if embedding is not None and embedding.shape != (shape.vocab, shape.width):
        raise BrokenModel(f"`embed_tokens.weight` of `{folder}` is {list(embedding.shape)}")
    tokens = _tokens(folder, shape.vocab, shape.kept, tensors.pop("d2t", None))
    kept = {name: tensors[name] for name in expected}
    order = np.argsort(tokens)
    kept["lm_head.weight"] = kept["lm_head.weight"][order]
    return Head(shape, kept, tokens[order], embedding, noted(folder))


def read_shape(folder: Path, layers: int = 0) -> HeadShape:
    """Read the hyperparameters of the head in a folder; raises as `read` does."""
    config = read_json(folder / CONFIG)
    inner = config.get("transformer_layer_config")
    layer = config | (inner if isinstance(inner, dict) else {})
    source, outer = Values(folder / CONFIG, layer), Values(folder / CONFIG, config)
    for key in UNCOMPUTED:
        if flag(source, key):
            raise UnsupportedModel(f"`{key}` of `{folder}` is true, which localspec does not compute")
    if (name := text(source, "hidden_act", "silu")) != "silu":
        raise UnsupportedModel(f"`hidden_act` of `{folder}` is `{printable(name)}`, expected `silu`")
    if whole(source, "num_hidden_layers", 1) != 1:
        raise UnsupportedModel(f"`{folder}` has several layers, expected a head of one")
    width, heads = whole(source, "hidden_size"), whole(source, "num_attention_heads")
    head_width = whole(source, "head_dim", max(width // heads, 1))
    key_heads = whole(source, "num_key_value_heads", heads)
    if heads % key_heads or head_width % 2:
        raise UnsupportedModel(f"The heads of attention of `{folder}` do not divide evenly")
    context = whole(source, "max_position_embeddings", DEFAULT_CONTEXT, most=MAX_CONTEXT)
    rope = rope_of(layer, head_width, context, str(folder / CONFIG))
    if len(rope.frequencies) * 2 != head_width:
        raise UnsupportedModel(f"`{folder}` rotates a part of its columns, which localspec does not compute")
    vocab = whole(source, "vocab_size", most=MAX_TOKENS)
    return HeadShape(
        width=width,
        inner=whole(source, "intermediate_size"),
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        epsilon=number(source, "rms_norm_eps", 1e-6, most=1.0),
        vocab=vocab,
        kept=whole(outer, "draft_vocab_size", vocab, most=vocab),
        taps=_taps(folder, config, layers),
        tapped_width=whole(outer, "target_hidden_size", width),
        context=rope.context,
        base=number(source, "rope_theta", 10000.0, least=1.0),
        frequencies=rope.frequencies,
        rope_scale=rope.scale,
        norms_residual=flag(outer, "norm_before_residual", isinstance(inner, dict)),
    )


def read_tokens(folder: Path) -> NDArray[np.int64]:
    """Return the target's tokens that a head can guess, ascending; raises as `read` does."""
    tensors = _tensors(folder, only={"d2t"})
    config = read_json(folder / CONFIG)
    source = Values(folder / CONFIG, config)
    vocab = whole(source, "vocab_size", most=MAX_TOKENS)
    kept = whole(source, "draft_vocab_size", vocab, most=vocab)
    return np.sort(_tokens(folder, vocab, kept, tensors.get("d2t")))


def default_taps(layers: int) -> tuple[int, ...]:
    """Return after how many layers EAGLE-3 reads the states of a target with `layers` layers."""
    low, middle, high = 2, layers // 2, layers - 3
    return (low, middle, high) if low < middle < high else tuple(sorted({1, max(layers // 2, 1), layers}))


def write(head: Head, into: Path) -> None:
    """Write a head in float16 into a folder, in the published layout."""
    shape = head.shape
    tensors: dict[str, NDArray[Any]] = {
        name: value.astype(np.float16) for name, value in head.tensors.items()
    }
    known = np.zeros(shape.vocab, np.bool_)
    known[head.tokens] = True
    tensors |= {"d2t": head.tokens - np.arange(shape.kept), "t2d": known}
    write_file(into / WEIGHTS, tensors)
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"} | config_of(shape)
    config |= {"torch_dtype": "float16", OWN: head.about}
    (into / CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", "utf-8")


def config_of(shape: HeadShape) -> dict[str, Any]:
    """Return the keys of a config.json from which `read_shape` reads a shape."""
    return {
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_width,
        "rms_norm_eps": shape.epsilon,
        "rope_theta": shape.base,
        "max_position_embeddings": shape.context,
        "vocab_size": shape.vocab,
        "draft_vocab_size": shape.kept,
        "target_hidden_size": shape.tapped_width,
        "norm_before_residual": shape.norms_residual,
        "tie_word_embeddings": False,
        TAPS: list(shape.taps),
    }


def _tensors(folder: Path, only: Collection[str] | None = None) -> dict[str, Tensor]:
    """Return the tensors of a folder by their published names, in float32, or `only` some of them."""
    if not any(folder.glob("*.safetensors")) and (folder / CHECKPOINT).is_file():
        state = torch_checkpoint.state(folder / CHECKPOINT)
        found = {name: np.asarray(value, np.float32) for name, value in state.items()}
    else:
        opened = SafetensorsFolder.open(folder)
        found = {name: opened.array(name) for name in opened.tensors if only is None or name in only}
    return {_published(name): value for name, value in found.items()}


def _published(name: str) -> str:
    name = name.removeprefix("model.")
    return LAYER + name.removeprefix(SPECULATORS_LAYER) if name.startswith(SPECULATORS_LAYER) else name


def _taps(folder: Path, config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Return after how many layers of the target its states are read.

    vLLM and `speculators` count layers that were read; SGLang's `eagle_config` numbers them from 0.
    """
    nested = config.get("eagle_config")
    listed, first = config.get(TAPS), 0
    if listed is None and isinstance(nested, dict):
        listed, first = nested.get(TAPS), 1
    if listed is None:
        if not layers:
            raise UnsupportedModel(f"`{folder / CONFIG}` has no `{TAPS}`", "Name its target")
        return default_taps(layers)
    if not isinstance(listed, list) or not listed or not all(type(each) is int for each in listed):
        raise BrokenModel(f"`{TAPS}` of `{folder / CONFIG}` is no list of layers", "Download it again")
    taps = tuple(each + first for each in listed)
    if min(taps) < 1 or sorted(set(taps)) != list(taps):
        raise UnsupportedModel(f"`{TAPS}` of `{folder / CONFIG}` is {listed}, expected ascending layers")
    return taps


def _tokens(folder: Path, vocab: int, kept: int, offsets: Tensor | None) -> NDArray[np.int64]:
    """Return the target's token of each row: its number plus an offset of `d2t`."""
    numbers = np.arange(kept, dtype=np.int64)
    if offsets is None:
        if kept != vocab:
            raise BrokenModel(f"`{folder}` has no tensor `d2t`", "Download it again")
        return numbers
    tokens = numbers + offsets.astype(np.int64) if offsets.shape == numbers.shape else np.array([-1])
    if tokens.min() < 0 or tokens.max() >= vocab or len(np.unique(tokens)) < kept:
        raise BrokenModel(f"`d2t` of `{folder}` does not name {kept:,} tokens", "Download it again")
    return tokens


def noted(folder: Path) -> dict[str, Any]:
    """Return what localspec noted in a head's config.json, nothing for a published head."""
    noted = read_json(folder / CONFIG).get(OWN)
    return noted if isinstance(noted, dict) else {}
