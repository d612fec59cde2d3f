"""The tensors that a decoder of given hyperparameters has: a file with others, or without one, is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.weights import hf_name
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.hyperparameters.families import DEFAULTS
from localspec.formats.tensors import TensorInfo
from localspec.formats.values import MAX_TOKENS, alike, flag, whole

ROPE_FACTORS = "rope_freqs.weight"
DIVIDED = ("llama", "mistral", "granite")  # families whose frequencies llama.cpp divides by those factors
COMPUTED = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")  # which old files hold
FLOATS = ("F64", "F32", "F16", "BF16")
GGUF_BIASES = {  # that llama.cpp adds if a file has them
    **dict.fromkeys(("llama", "mistral", "granite"), "qkvo+ffn"),
    **dict.fromkeys(("qwen3", "smollm3"), "qkv"),
}
Shape = tuple[int, ...]


class Heads(NamedTuple):
    """The numbers of a decoder that its metadata always give."""

    family: str
    layers: int
    width: int
    heads: int
    key_heads: int
    head_width: int

    @property
    def queries(self) -> int:
        """The rows of all query heads."""
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        """The rows of all key heads, or of all value heads."""
        return self.key_heads * self.head_width


class Sizes(NamedTuple):
    """The numbers that the shapes of a decoder's tensors follow from."""

    heads: Heads
    inner: int  # the width of the feed-forward network
    vocab: int


def check_gguf(file: GgufFile, heads: Heads) -> None:
    """Raise UnsupportedModel for a tensor that would be ignored, BrokenModel for one that is missing.

    Biases that llama.cpp adds wherever a file has them are optional here too.
    """
    inner = _inner_width(file, "feed_forward_length", "blk.0.ffn_down.weight", heads.layers)
    sizes = Sizes(heads, inner, _rows(file, "token_embd.weight"))
    biases = GGUF_BIASES.get(sizes.heads.family, "")
    optional = {} if not biases else _biases(sizes, "qkvo" if "o" in biases else "qkv", ffn="ffn" in biases)
    optional |= {"output.weight": (sizes.vocab, sizes.heads.width)}
    if sizes.heads.family in DIVIDED:
        optional[ROPE_FACTORS] = (sizes.heads.head_width // 2,)
    _check(file, file.tensors, _needed(sizes) | _norms(sizes), optional)


def check_folder(folder: SafetensorsFolder, heads: Heads, *, tied: bool) -> None:
    """Raise UnsupportedModel for a tensor that would be ignored, BrokenModel for one that is missing.

    Tensors of rotary frequencies, which all libraries compute, may be there, and a tied head that is the
    embedding once more.
    """
    inner = _inner_width(folder, "intermediate_size", "model.layers.0.mlp.down_proj.weight", heads.layers)
    rows = _rows(folder, "model.embed_tokens.weight")
    sizes = Sizes(heads, inner, whole(folder, "vocab_size", rows, most=MAX_TOKENS))
    needed, default = _needed(sizes) | _norms(sizes), DEFAULTS[heads.family]
    if default.joined:
        needed = _joined(needed)
    attention = "qkvo" if default.attention_bias and flag(folder, "attention_bias") else ""
    needed |= _biases(sizes, attention, ffn=default.mlp_bias and flag(folder, "mlp_bias"))
    head = {"output.weight": (sizes.vocab, sizes.heads.width)}
    needed, optional = (needed, head) if tied else (needed | head, {})
    found = {name: info for name, info in folder.tensors.items() if not COMPUTED.fullmatch(name)}
    _check(folder, found, _renamed(needed), _renamed(optional))
    if tied and "lm_head.weight" in found and not head_is_embedding(folder):
        raise another_head(folder)


def _inner_width(file: GgufFile | SafetensorsFolder, key: str, down: str, layers: int) -> int:
    """Return the width of the feed-forward network, as `key` gives it or else as the tensor `down` has it."""
    info = file.tensors.get(down)
    return alike(file, key, layers, info.shape[-1] if info else 1)


def _rows(file: GgufFile | SafetensorsFolder, name: str) -> int:
    """Return the rows of a tensor, 1 if it is missing."""
    info = file.tensors.get(name)
    return info.shape[0] if info else 1


def _needed(sizes: Sizes) -> dict[str, Shape]:
    """Return the shapes of the matrices that every family has, and of its biases."""
    width, inner = sizes.heads.width, sizes.inner
    parts: dict[str, Shape] = {
        "attn_q.weight": (sizes.heads.queries, width),
        "attn_k.weight": (sizes.heads.keys, width),
        "attn_v.weight": (sizes.heads.keys, width),
        "attn_output.weight": (width, sizes.heads.queries),
        "ffn_gate.weight": (inner, width),
        "ffn_up.weight": (inner, width),
        "ffn_down.weight": (width, inner),
    }
    shapes = {"token_embd.weight": (sizes.vocab, width), "output_norm.weight": (width,)}
    shapes |= _in_layers(sizes, parts)
    return shapes | (_biases(sizes, "qkv", ffn=False) if DEFAULTS[sizes.heads.family].qkv_bias else {})


def _norms(sizes: Sizes) -> dict[str, Shape]:
    """Return the shapes of the norms of all layers."""
    after = sizes.heads.family == "olmo2"
    names = ("post_attention_norm", "post_ffw_norm") if after else ("attn_norm", "ffn_norm")
    parts: dict[str, Shape] = {f"{name}.weight": (sizes.heads.width,) for name in names}
    if DEFAULTS[sizes.heads.family].head_norms:
        parts["attn_q_norm.weight"] = (sizes.heads.queries if after else sizes.heads.head_width,)
        parts["attn_k_norm.weight"] = (sizes.heads.keys if after else sizes.heads.head_width,)
    return _in_layers(sizes, parts)


def _biases(sizes: Sizes, attention: str, *, ffn: bool) -> dict[str, Shape]:
    """Return the shapes of the biases of these matrices of attention, and of the feed-forward network."""
    rows = {
        "q": ("attn_q", sizes.heads.queries),
        "k": ("attn_k", sizes.heads.keys),
        "v": ("attn_v", sizes.heads.keys),
    }
    rows["o"] = ("attn_output", sizes.heads.width)
    found = [rows[part] for part in attention]
    if ffn:
        found += [("ffn_gate", sizes.inner), ("ffn_up", sizes.inner), ("ffn_down", sizes.heads.width)]
    return _in_layers(sizes, {f"{name}.bias": (count,) for name, count in found})


def _in_layers(sizes: Sizes, parts: Mapping[str, Shape]) -> dict[str, Shape]:
    return {f"blk.{at}.{part}": shape for at in range(sizes.heads.layers) for part, shape in parts.items()}


def _joined(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Return shapes with queries, keys and values in one matrix, and gate and up in another."""
    joined: dict[str, Shape] = {}
    for name, shape in shapes.items():
        full = re.sub(r"attn_[qkv]\.", "attn_qkv.", re.sub(r"ffn_(gate|up)\.", "ffn_gate_up.", name))
        before = joined.get(full)
        joined[full] = shape if before is None else (before[0] + shape[0], *shape[1:])
    return joined


def _renamed(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    return {hf_name(name): shape for name, shape in shapes.items()}


def _check(
    source: GgufFile | SafetensorsFolder,
    found: Mapping[str, TensorInfo],
    needed: Mapping[str, Shape],
    optional: Mapping[str, Shape],
) -> None:
    """Compare the tensors of a file to those that its hyperparameters stand for."""
    for name in found:
        if name not in needed and name not in optional:
            raise UnsupportedModel(
                f"`{source.path}` has the tensor `{printable(name)}`, which its family does not have"
            )
    for name in needed:
        if name not in found:
            raise BrokenModel(f"`{source.path}` has no tensor `{name}`", "Download it again")
    for name, info in found.items():
        shape = needed[name] if name in needed else optional[name]
        if isinstance(source, GgufFile):
            source.check_kind(name)
        if isinstance(source, SafetensorsFolder) and info.kind not in FLOATS:
            raise UnsupportedModel(
                f"`{name}` in `{source.path}` has the unsupported tensor type {printable(info.kind)}"
            )
        if _without_ones(info.shape, len(shape)) != shape:
            raise BrokenModel(
                f"The tensors of `{source.path}` do not fit its own configuration: `{name}` is "
                f"{_shown(info.shape)} and should be {_shown(shape)}",
                "Download it again",
            )


def _without_ones(shape: Shape, dimensions: int) -> Shape:
    """Return a shape without leading dimensions of 1, which GGUF files may have more of."""
    while len(shape) > dimensions and shape[0] == 1:
        shape = shape[1:]
    return shape


def _shown(shape: Shape) -> str:
    return " x ".join(f"{size:,}" for size in shape) or "one number"


def another_head(folder: SafetensorsFolder) -> UnsupportedModel:
    """Return the error of a tied head that is another matrix: libraries disagree on which one holds."""
    return UnsupportedModel(
        f"`tie_word_embeddings` of `{folder.path}` is true, and its `lm_head.weight` is not the embedding"
    )


def head_is_embedding(folder: SafetensorsFolder) -> bool:
    """Return whether the head equals the embedding, value for value."""
    return folder.equal("lm_head.weight", "model.embed_tokens.weight")
