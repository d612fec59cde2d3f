"""Random decoders in the shapes of well-known models, with weights in any form, made on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from localspec.decoder.compressed import EightBits, FourBits
from localspec.decoder.weights import Layer, Matrix, Plain, Weights
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.rope import frequencies


@dataclass(frozen=True)
class Size:
    """The numbers of a decoder that its tensors follow from."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    vocab: int
    tied: bool


SIZES = {
    "tiny": Size(2, 256, 512, 4, 2, 512, True),
    "1.5B": Size(28, 1536, 8960, 12, 2, 151936, True),
    "8B": Size(32, 4096, 14336, 32, 8, 128256, False),
}
HEAD_WIDTH, CONTEXT = 128, 16384
FORMS = ("bf16", "int8", "int8 by 32", "int4")


def decoder_of(size: Size, form: str, place: torch.device, dtype: torch.dtype) -> Weights:
    """Return random weights; matrices are in `form`, all else in `dtype`."""

    def matrix(rows: int, columns: int) -> Matrix:
        return matrix_of(rows, columns, form, place, dtype)

    def norm() -> Any:
        return torch.ones(size.width, device=place, dtype=dtype)

    queries, keys = size.heads * HEAD_WIDTH, size.key_heads * HEAD_WIDTH
    layers = tuple(
        Layer(
            matrix(queries + 2 * keys, size.width),
            matrix(size.width, queries),
            matrix(2 * size.inner, size.width),
            matrix(size.width, size.inner),
            (norm(), norm()),
            None,
        )
        for _ in range(size.layers)
    )
    wide = "int8" if form == "int4" else form  # as files have their tables
    table = matrix_of(size.vocab, size.width, wide, place, dtype)
    head = table if size.tied else matrix_of(size.vocab, size.width, wide, place, dtype)
    rates = frequencies(1e6, HEAD_WIDTH).astype(np.float32)
    shape = Architecture(
        "llama", size.layers, size.width, size.heads, size.key_heads, HEAD_WIDTH, CONTEXT, 1e-6, rates,
        tied=size.tied,
    )  # fmt: skip
    return Weights(shape, table, layers, norm(), head, torch.from_numpy(rates).to(place))


def matrix_of(rows: int, columns: int, form: str, place: torch.device, dtype: torch.dtype) -> Matrix:
    """Return a random matrix whose products keep the size of what they read."""
    spread = columns**-0.5
    if form.startswith("int8"):
        group = 32 if form.endswith("32") else 256
        codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device=place)
        scale = torch.full((rows, columns // group), spread / 73, dtype=torch.float16, device=place)
        return EightBits(codes, scale)
    if form == "int4":
        halves = torch.float16 if place.type == "cuda" else dtype
        scales = torch.zeros(columns // 32, rows, 2, dtype=halves, device=place)
        scales[..., 0] = spread / 4.6
        return FourBits(_packed(rows, columns, place), scales, 32, rests=False)
    return Plain(torch.randn(rows, columns, device=place, dtype=dtype) * spread)


def _packed(rows: int, columns: int, place: torch.device) -> Any:
    if place.type != "cuda":
        codes = torch.randint(0, 16, (rows, columns), dtype=torch.int32)
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    return torch.randint(0, 256, (columns // 64, rows, 32), dtype=torch.uint8, device=place)


def bytes_of(found: Any) -> int:
    """Return the bytes of the tensors in a record of weights, each counted once."""
    seen: dict[int, int] = {}

    def walk(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            seen[value.data_ptr()] = value.numel() * value.element_size()
        elif isinstance(value, tuple):
            for each in value:
                walk(each)
        elif hasattr(value, "__slots__") and not isinstance(value, Architecture):
            walk(tuple(getattr(value, name) for name in value.__slots__))

    walk(found)
    return sum(seen.values())
