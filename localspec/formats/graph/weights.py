"""A decoder's tensors under uniform names, whatever file they come from.

The names are llama.cpp's without `.weight`: `token_embd`, `blk.0.attn_q`, `output_norm` ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, ModelError, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.gguf.quants import READERS, Affine, unpack
from localspec.formats.huggingface.packed import PackedFolder
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.values import whole

ROWS = 2048  # rows of a matrix that a thread holds in float32 at a time
GROUPS = (256, 128, 64, 32)  # columns that share a scale: the most that divide a row, which is fastest
LARGEST = 127 * 65504  # the largest float16 scale, times the largest code
FOUR_BITS = ("Q4_0",)  # stored unchanged: codes, and one scale for 32 columns
WITH_OFFSETS = ("Q4_1", "Q4_K")  # stored unchanged if memory is short
NARROW = ("Q5_0", "Q6_K", "Q8_0")  # codes of up to eight bits, and one scale for 16 or 32 columns

T = TypeVar("T")


class Weights(Protocol):
    """The tensors of a model file, as the graph builder reads them."""

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name, suffix included."""

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias by its name, suffix included."""

    def matrix(self, name: str) -> Affine:
        """Return a matrix [rows, groups, width] in 4 bits as stored, or in 8 bits."""

    def table(self, name: str) -> Affine:
        """Return a matrix without offsets, for a lookup."""


class GgufWeights:
    """Tensors of a GGUF file: Q4_0 stays in 4 bits, with `offsets` Q4_1 and Q4_K too, others get 8.

    With `narrow` Q5_0, Q6_K and Q8_0 keep their codes, which OpenVINO has no fast path for. With `plain` all
    are dequantized to float16, for a later quantization.
    """

    def __init__(self, file: GgufFile, *, offsets: bool, narrow: bool = False, plain: bool = False) -> None:
        self._file = file
        self._plain = plain
        self._table = (*FOUR_BITS, *NARROW) if narrow else FOUR_BITS
        self._kept = (*self._table, *WITH_OFFSETS) if offsets else self._table

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name."""
        return name in self._file.tensors

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias."""
        _need(self._file, name)
        return _finite(self._values(name, self._file.raw(name)).reshape(-1))

    def matrix(self, name: str) -> Affine:
        """Return a matrix as stored, or in 8 bits."""
        return self._matrix(f"{name}.weight", self._kept)

    def table(self, name: str) -> Affine:
        """Return a matrix as stored unless it has offsets, else in 8 bits."""
        return self._matrix(f"{name}.weight", self._table)

    def _matrix(self, name: str, kept: tuple[str, ...]) -> Affine:
        _need(self._file, name)
        kind, raw = self._file.tensors[name].kind, self._file.raw(name)
        if self._plain:
            return sixteen_bits(lambda rows: self._values(name, raw[rows]), len(raw))
        if kind in kept:
            return READERS[kind](raw)
        return eight_bits(lambda rows: self._values(name, raw[rows]), len(raw))

    def _values(self, name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Dequantize rows to float32, with gguf's own code for the formats that are not affine."""
        kind = self._file.tensors[name].kind
        affine = unpack(kind, raw)
        if affine is not None:
            return affine.values()
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        try:
            return np.asarray(dequantize(raw, GGMLQuantizationType[kind]), np.float32)
        except NotImplementedError:
            what = f"`{name}` in `{self._file.path}` is of type {kind}"
            raise UnsupportedModel(f"{what}, which cannot be read") from None


class FolderWeights:
    """Tensors of a Hugging Face folder, matrices in 8 bits, or with `plain` in float16."""

    def __init__(self, folder: SafetensorsFolder, *, plain: bool = False) -> None:
        self._folder = folder
        self._converted = sixteen_bits if plain else eight_bits

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name."""
        return hf_name(name) in self._folder.tensors

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias."""
        _need(self._folder, hf_name(name))
        return _finite(self._folder.array(hf_name(name)))

    def matrix(self, name: str) -> Affine:
        """Return a matrix as GPTQ or AWQ packed it, in 8 bits, or in float16."""
        full_name = hf_name(f"{name}.weight")
        if isinstance(self._folder, PackedFolder) and (found := self._folder.affine(full_name)):
            return found
        values = self._values(name)
        return self._converted(lambda rows: values[rows], len(values))

    table = matrix

    def _values(self, name: str) -> NDArray[np.float32]:
        """Return a matrix, as rows of a joined one if the folder has that (Phi-3)."""
        full_name = hf_name(name + ".weight")
        layer, _, part = name.rpartition(".")
        joined = hf_name(f"{layer}.{JOINED[part][0]}.weight") if part in JOINED else full_name
        if full_name in self._folder.tensors or joined not in self._folder.tensors:
            _need(self._folder, full_name)
            return self._folder.array(full_name)
        matrix = self._folder.array(joined)
        at = JOINED[part][1]
        if part.startswith("ffn"):
            return np.split(matrix, 2)[at]
        heads = whole(self._folder, "num_attention_heads")
        key_heads = whole(self._folder, "num_key_value_heads", heads)
        row = len(matrix) // (heads + 2 * key_heads)
        return np.split(matrix, [heads * row, (heads + key_heads) * row])[at]


class StateWeights:
    """Tensors of a torch model by Hugging Face's names, [rows, columns] in float32; matrices in float16."""

    def __init__(self, state: Mapping[str, NDArray[np.float32]]) -> None:
        self._state = state

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name."""
        return hf_name(name) in self._state

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias."""
        return self._state[hf_name(name)]

    def matrix(self, name: str) -> Affine:
        """Return a matrix in float16."""
        values = self._state[hf_name(name + ".weight")]
        return sixteen_bits(lambda rows: values[rows], len(values))

    table = matrix


def eight_bits(values: Callable[[slice], NDArray[np.float32]], rows: int) -> Affine:
    """Quantize a matrix of `rows` rows, whose slices `values` returns, to int8 with one scale per group.

    A value is off by at most 1/254 of its group's largest, or 4e-6 if that is more: scales are float16.
    Raises BrokenModel for values that are not finite or beyond that range.
    """
    pieces = _in_slices(lambda rows: _quantized(values(rows)), rows)
    return Affine(
        8,
        np.concatenate([codes for codes, _ in pieces]),
        np.concatenate([scale for _, scale in pieces]),
        None,
    )


def sixteen_bits(values: Callable[[slice], NDArray[np.float32]], rows: int) -> Affine:
    """Return a matrix of `rows` rows, whose slices `values` returns, as float16 "codes" with scales of 1."""
    codes = np.concatenate(_in_slices(lambda rows: _float16(values(rows)), rows))
    return Affine(16, codes, np.ones(codes.shape[:2], np.float32), None)


def _in_slices(convert: Callable[[slice], T], rows: int) -> list[T]:
    slices = [slice(at, min(at + ROWS, rows)) for at in range(0, rows, ROWS)]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(convert, slices))


def _group(values: NDArray[np.float32]) -> int:
    """Return how many columns of a matrix share a scale."""
    return next(group for group in (*GROUPS, 1) if values.shape[1] % group == 0)


def _finite(values: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(values).all():
        raise _out_of_range(values)
    return values


def _out_of_range(values: NDArray[np.float32]) -> ModelError:
    """Return the error of numbers that a graph cannot hold: damage, unless all of them are finite."""
    if np.isfinite(values).all():
        return UnsupportedModel("The weights hold numbers that are too large for a graph")
    return BrokenModel("The weights hold numbers that are not finite", "Download the model again")


def _float16(values: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise _out_of_range(values)
    return halves.reshape(len(values), -1, _group(values))


def _quantized(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    groups = values.reshape(len(values), -1, _group(values))
    largest = np.maximum(groups.max(axis=-1), -groups.min(axis=-1))
    if not (largest < LARGEST).all():
        raise _out_of_range(values)
    scale = (largest / np.float32(127)).astype(np.float16).astype(np.float32)  # as stored
    steps = groups * (np.float32(1) / np.where(scale == 0, np.float32(1), scale))[..., None]
    return np.rint(steps, out=steps).clip(-127, 127).astype(np.int8), scale


def _need(source: GgufFile | SafetensorsFolder, name: str) -> None:
    if name not in source.tensors:
        raise BrokenModel(f"`{source.path}` has no tensor `{name}`", "Download it again")


JOINED = {  # a matrix -> the one that holds it in some families, and its place there
    "attn_q": ("attn_qkv", 0),
    "attn_k": ("attn_qkv", 1),
    "attn_v": ("attn_qkv", 2),
    "ffn_gate": ("ffn_gate_up", 0),
    "ffn_up": ("ffn_gate_up", 1),
}
GGUF_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", re.ASCII)
HF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_gate_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
    "post_attention_norm": "post_attention_layernorm",  # OLMo 2's, which follows attention
    "post_ffw_norm": "post_feedforward_layernorm",
}


def hf_name(name: str) -> str:
    """Return Hugging Face's name of a tensor."""
    match = GGUF_NAME.fullmatch(name)
    assert match is not None, name
    layer, part, suffix = match.groups()
    prefix = "" if layer is None else f"model.layers.{layer}."
    return f"{prefix}{HF_NAMES[part]}.{suffix}"
