"""A decoder's tensors under one set of names, whatever file they come from.

Names are llama.cpp's without `.weight`: `token_embd`, `blk.0.attn_q`, `output_norm` ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf import GgufFile
from localspec.formats.quants import READERS, Affine, unpack
from localspec.formats.safetensors import SafetensorsFolder

ROWS = 8192  # rows of a matrix that are in memory as float32 at a time
GROUP = 32  # columns that share a scale


class Weights(Protocol):
    """What the graph asks of a model file."""

    def has(self, name: str) -> bool:
        """Tell whether there is a tensor of that name (with its suffix)."""

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias (name with its suffix)."""

    def matrix(self, name: str) -> Affine:
        """Return a matrix [rows, groups, GROUP] in four bits as stored, or in eight bits."""


class GgufWeights:
    """Tensors of a GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def has(self, name: str) -> bool:
        """Tell whether there is a tensor of that name."""
        return name in self._file.tensors

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias."""
        _need(self._file, name)
        return self._values(name, self._file.raw(name)).reshape(-1)

    def matrix(self, name: str) -> Affine:
        """Return a matrix: four-bit formats and Q8_0, Q5_0 exactly, others in eight bits a value."""
        name += ".weight"
        _need(self._file, name)
        kind, raw = self._file.tensors[name].kind, self._file.raw(name)
        if kind in ("Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q8_0"):
            return replace(READERS[kind](raw), bits=4 if kind.startswith("Q4") else 8)
        pieces = (self._values(name, raw[at : at + ROWS]) for at in range(0, len(raw), ROWS))
        return eight_bits(pieces, len(raw))

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
    """Tensors of a Hugging Face folder, each matrix in eight bits a value."""

    def __init__(self, folder: SafetensorsFolder) -> None:
        self._folder = folder
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
        """Return a matrix in eight bits a value."""
        theirs = _theirs(name + ".weight")
        _need(self._folder, theirs)
        values = self._folder.array(theirs)
        return eight_bits((values[at : at + ROWS] for at in range(0, len(values), ROWS)), len(values))


def eight_bits(pieces: Iterator[NDArray[np.float32]], rows: int) -> Affine:
    """Round float32 rows to int8 codes, one scale a group: off by 1/254 of its largest value at most."""
    codes: NDArray[np.int8] | None = None
    at = 0
    for piece in pieces:
        groups = piece.reshape(len(piece), -1, GROUP)
        if codes is None:
            codes = np.empty((rows, *groups.shape[1:]), np.int8)
            scales = np.empty(codes.shape[:2], np.float32)
        scale = np.abs(groups).max(axis=-1) / 127
        # codes are for the scale as it will be stored
        scale = scale.astype(np.float16).astype(np.float32)
        safe = np.where(scale == 0, 1, scale)[..., None]
        codes[at : at + len(piece)] = np.rint(groups / safe).clip(-127, 127)
        scales[at : at + len(piece)] = scale
        at += len(piece)
    assert codes is not None
    return Affine(8, codes, scales, None)


def _need(source: GgufFile | SafetensorsFolder, name: str) -> None:
    if name not in source.tensors:
        raise BrokenModel(f"`{source.path}` has no tensor `{name}`", "Fetch it again")


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
