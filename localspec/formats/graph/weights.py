"""A decoder's tensors under one set of names, whatever file they come from.

Names are llama.cpp's without `.weight`: `token_embd`, `blk.0.attn_q`, `output_norm` ...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.gguf.quants import READERS, Affine, unpack
from localspec.formats.huggingface.safetensors import SafetensorsFolder

ROWS = 2048  # rows of a matrix that a thread has in memory as float32 at a time
GROUP = 32  # columns that share a scale
LARGEST = 127 * 65504  # the largest float16 scale, times the largest code
EXACT = ("Q4_0", "Q5_0", "Q8_0")  # kept as they are: codes and one scale for GROUP columns
WITH_MINIMA = ("Q4_1", "Q4_K")
BEYOND = "The weights hold numbers that are too large or not finite"

T = TypeVar("T")


class Weights(Protocol):
    """What the graph asks of a model file."""

    def has(self, name: str) -> bool:
        """Tell whether there is a tensor of that name (with its suffix)."""

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias (name with its suffix)."""

    def matrix(self, name: str) -> Affine:
        """Return a matrix [rows, groups, GROUP] in four bits as stored, or in eight bits."""

    def table(self, name: str) -> Affine:
        """Return a matrix without minima, for a lookup."""


class GgufWeights:
    """Tensors of a GGUF file; with `minima` four-bit formats keep theirs, else those take eight bits.

    `plain` weights are all in float16: what they stand for, for who quantizes them anew.
    """

    def __init__(self, file: GgufFile, *, minima: bool, plain: bool = False) -> None:
        self._file = file
        self._plain = plain
        self._kept = (*EXACT, *WITH_MINIMA) if minima else EXACT

    def has(self, name: str) -> bool:
        """Tell whether there is a tensor of that name."""
        return name in self._file.tensors

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias."""
        _need(self._file, name)
        return self._values(name, self._file.raw(name)).reshape(-1)

    def matrix(self, name: str) -> Affine:
        """Return a matrix as it is stored, or in eight bits a value."""
        return self._matrix(f"{name}.weight", self._kept)

    def table(self, name: str) -> Affine:
        """Return a matrix as it is stored unless it has minima, else in eight bits a value."""
        return self._matrix(f"{name}.weight", EXACT)

    def _matrix(self, name: str, kept: tuple[str, ...]) -> Affine:
        _need(self._file, name)
        kind, raw = self._file.tensors[name].kind, self._file.raw(name)
        if self._plain:
            return sixteen_bits(lambda rows: self._values(name, raw[rows]), len(raw))
        if kind in kept:
            return READERS[kind](raw)
        return eight_bits(lambda rows: self._values(name, raw[rows]), len(raw))

    def _values(self, name: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return rows as float32, through our own readers or gguf's for the formats that are not affine."""
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
    """Tensors of a Hugging Face folder, each matrix in eight bits a value, or `plain` ones in float16."""

    def __init__(self, folder: SafetensorsFolder, *, plain: bool = False) -> None:
        self._folder = folder
        self._rounded = sixteen_bits if plain else eight_bits
        self._tied = bool(folder.config.get("tie_word_embeddings"))

    def has(self, name: str) -> bool:
        """Tell whether there is a tensor of that name."""
        if name == "output.weight" and self._tied:
            return False
        return _theirs(name) in self._folder.tensors

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias."""
        _need(self._folder, _theirs(name))
        return self._folder.array(_theirs(name))

    def matrix(self, name: str) -> Affine:
        """Return a matrix in eight bits a value, or in sixteen."""
        theirs = _theirs(name + ".weight")
        _need(self._folder, theirs)
        values = self._folder.array(theirs)
        return self._rounded(lambda rows: values[rows], len(values))

    table = matrix


class StateWeights:
    """Tensors of a torch model by Hugging Face's names, [rows, columns] in float32; matrices in float16."""

    def __init__(self, state: Mapping[str, NDArray[np.float32]], *, tied: bool) -> None:
        self._state, self._tied = state, tied

    def has(self, name: str) -> bool:
        """Tell whether there is a tensor of that name."""
        return not (name == "output.weight" and self._tied) and _theirs(name) in self._state

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias."""
        return self._state[_theirs(name)]

    def matrix(self, name: str) -> Affine:
        """Return a matrix in float16."""
        values = self._state[_theirs(name + ".weight")]
        return sixteen_bits(lambda rows: values[rows], len(values))

    table = matrix


def eight_bits(values: Callable[[slice], NDArray[np.float32]], rows: int) -> Affine:
    """Round the `values` of some rows, all `rows` in turn, to int8 codes with one scale a group.

    A value is off by 1/254 of its group's largest at most, or by 4e-6 where that is more: scales are float16.
    Raises BrokenModel for values that are not finite or beyond that range.
    """
    pieces = _in_pieces(lambda rows: _rounded(values(rows)), rows)
    return Affine(
        8,
        np.concatenate([codes for codes, _ in pieces]),
        np.concatenate([scale for _, scale in pieces]),
        None,
    )


def sixteen_bits(values: Callable[[slice], NDArray[np.float32]], rows: int) -> Affine:
    """Return the `values` of some rows, all `rows` in turn, as float16 "codes" with scales of 1."""
    codes = np.concatenate(_in_pieces(lambda rows: _halved(values(rows)), rows))
    return Affine(16, codes, np.ones(codes.shape[:2], np.float32), None)


def _in_pieces(of: Callable[[slice], T], rows: int) -> list[T]:
    slices = [slice(at, min(at + ROWS, rows)) for at in range(0, rows, ROWS)]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(of, slices))


def _halved(values: NDArray[np.float32]) -> NDArray[np.float16]:
    found = values.astype(np.float16)
    if not np.isfinite(found).all():
        raise BrokenModel(BEYOND, "Download the model again")
    return found.reshape(len(values), -1, GROUP)


def _rounded(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    groups = values.reshape(len(values), -1, GROUP)
    largest = np.maximum(groups.max(axis=-1), -groups.min(axis=-1))
    if not (largest < LARGEST).all():
        raise BrokenModel(BEYOND, "Download the model again")
    scale = (largest / np.float32(127)).astype(np.float16).astype(np.float32)  # as it will be stored
    steps = groups * (np.float32(1) / np.where(scale == 0, np.float32(1), scale))[..., None]
    return np.rint(steps, out=steps).clip(-127, 127).astype(np.int8), scale


def _need(source: GgufFile | SafetensorsFolder, name: str) -> None:
    if name not in source.tensors:
        raise BrokenModel(f"`{source.path}` has no tensor `{name}`", "Download it again")


THEIRS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _theirs(name: str) -> str:
    """Return Hugging Face's name of a tensor."""
    found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    assert found is not None, name
    layer, part, suffix = found.groups()
    prefix = "" if layer is None else f"model.layers.{layer}."
    return f"{prefix}{THEIRS[part]}.{suffix}"
