"""Matrices in 8 or 4 bits on a torch device, with the numbers that the model's file has for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.decoder.weights import Matrix, Tensor
from localspec.formats.gguf.quants import Affine
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.builder import form_of, rows_of, stacked
from localspec.formats.graph.weights import Weights, eight_bits

NARROW = 64  # tokens up to which a product reads codes; for more, a dense matrix is made and used once
MOST_ZERO = 112  # a zero point that 4-bit codes can lose and still fit in 8 bits
GROUPS = (32, 64, 128, 256)  # columns of a scale that products in 4 bits know
Rows = tuple[Affine, NDArray[np.float32] | None]


@dataclass(frozen=True, slots=True)
class EightBits:
    """A matrix as int8 `codes` [rows, columns] with a float16 `scale` [rows, groups], and a bias [rows].

    A `rest` [rows] in float32 is added to all weights of a row: (128 - zero) * scale, for a zero point.
    """

    codes: Tensor
    scale: Tensor
    bias: Tensor | None = None
    rest: Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return len(self.codes)

    def product(self, x: Tensor) -> Tensor:
        """Return x [tokens, columns] times the transposed matrix, [tokens, rows]."""
        import torch

        if x.is_cuda:
            from localspec.decoder.kernels import products

            if len(x) <= NARROW and x.shape[1] % 32 == 0:
                return products.eight_bit_product(x, self.codes, self.scale, self.bias, self.rest)
            dense = products.dense_eight(self.codes, self.scale, x.dtype, self.rest)
        else:
            dense = self._dense(self.codes, self.scale, x.dtype, self.rest)
        return torch.nn.functional.linear(x, dense, self.bias)

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the rows [ids, columns] of token ids in float32."""
        import torch

        rest = None if self.rest is None else self.rest[ids]
        return self._dense(self.codes[ids], self.scale[ids], torch.float32, rest)

    def _dense(self, codes: Tensor, scale: Tensor, dtype: Any, rest: Tensor | None = None) -> Tensor:
        groups = codes.to(dtype).unflatten(-1, (scale.shape[-1], -1))
        dense = (groups * scale.to(dtype)[..., None]).flatten(-2)
        return dense if rest is None else dense + rest.to(dtype)[..., None]


@dataclass(frozen=True, slots=True)
class FourBits:
    """A matrix of 4-bit codes, scale * (code - 8) + rest, `packed` in the order of our kernels or torch's.

    `scales` [groups, rows, 2] are scale and rest of each `group` of columns, in float16 on CUDA.
    Without `rests` those are all 0.
    """

    packed: Tensor
    scales: Tensor
    group: int
    bias: Tensor | None = None
    rests: bool = True

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return int(self.scales.shape[1])

    def product(self, x: Tensor) -> Tensor:
        """Return x [tokens, columns] times the transposed matrix, [tokens, rows]."""
        import torch

        if x.is_cuda:
            from localspec.decoder.kernels import products

            if len(x) <= NARROW:
                return products.four_bit_product(
                    x, self.packed, self.scales, self.group, self.bias, self.rests
                )
            dense = products.dense_four(self.packed, self.scales, self.group, x.dtype)
            return torch.nn.functional.linear(x, dense, self.bias)
        product = torch.ops.aten._weight_int4pack_mm_for_cpu
        y = product(x.contiguous(), self.packed, self.group, self.scales)
        y = y.to(x.dtype)
        return y if self.bias is None else y + self.bias

    def lookup(self, ids: Tensor) -> Tensor:
        """Refuse: a table is in 8 bits."""
        raise AssertionError("a table of 4 bits")


@dataclass(frozen=True, slots=True)
class Several:
    """Matrices of different forms, one below the other."""

    parts: tuple[Matrix, ...]

    @property
    def rows(self) -> int:
        """The number of their rows."""
        return sum(part.rows for part in self.parts)

    def product(self, x: Tensor) -> Tensor:
        """Return x [tokens, columns] times the transposed matrices, [tokens, rows]."""
        import torch

        return torch.cat([part.product(x) for part in self.parts], -1)

    def lookup(self, ids: Tensor) -> Tensor:
        """Refuse: a table is one matrix."""
        raise AssertionError("a table of several matrices")


class FileTensors:
    """The tensors of a model file on a device: matrices in the `form` int8 or int4, all else in `dtype`.

    With int4 those stay in 4 bits that the file has so; others get 8.
    """

    def __init__(self, shape: Architecture, weights: Weights, place: Any, dtype: Any, form: str) -> None:
        self._shape, self._weights, self._place, self._dtype = shape, weights, place, dtype
        self._four = form == "int4"

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name."""
        return self._weights.has(name)

    def vector(self, name: str) -> Tensor:
        """Return a norm."""
        return self._moved(self._weights.vector(name))

    def table(self) -> Matrix:
        """Return the embedding, in 8 bits."""
        return self._matrix(_eight(self._weights.table("token_embd")), None)

    def matrix(self, names: Sequence[str]) -> Matrix:
        """Return matrices with their biases, neighbours of one form joined."""
        runs: list[list[Rows]] = []
        for name in names:
            weights, bias = rows_of(self._shape, self._weights, name)
            found = (weights if self._four and _suits_four(weights) else _eight(weights), bias)
            if runs and form_of(runs[-1][0][0]) == form_of(found[0]):
                runs[-1].append(found)
            else:
                runs.append([found])
        parts = [self._joined(run) for run in runs]
        return parts[0] if len(parts) == 1 else Several(tuple(parts))

    def _joined(self, run: Sequence[Rows]) -> Matrix:
        biases = [np.zeros(len(rows.codes), np.float32) if bias is None else bias for rows, bias in run]
        biased = any(bias is not None for _, bias in run)
        return self._matrix(stacked([rows for rows, _ in run]), np.concatenate(biases) if biased else None)

    def _matrix(self, weights: Affine, bias: NDArray[np.float32] | None) -> Matrix:
        import torch

        moved = None if bias is None else self._moved(bias)
        if weights.bits == 4:
            packed, scales = four_bits(weights, self._place, self._dtype)
            return FourBits(packed, scales, weights.codes.shape[-1], moved, weights.offset is not None)
        flat, rest = weights.codes.reshape(len(weights.codes), -1), None
        if weights.offset is not None:
            flat = (flat.view(np.uint8) ^ 128).view(np.int8)
            rest = torch.from_numpy((128 * weights.scale - weights.offset)[:, 0]).to(self._place)
        codes = torch.from_numpy(np.ascontiguousarray(flat))
        scale = torch.from_numpy(weights.scale.astype(np.float16))
        return EightBits(codes.to(self._place), scale.to(self._place), moved, rest)

    def _moved(self, values: NDArray[np.float32]) -> Tensor:
        import torch

        owned = np.require(values, requirements=["C", "W"])
        return torch.from_numpy(owned).to(self._place, self._dtype)


def four_bits(weights: Affine, place: Any, dtype: Any) -> tuple[Tensor, Tensor]:
    """Return codes in the order of torch's products on a device, and scales and rests [groups, rows, 2].

    A weight scale * code - offset, with codes from 0 to 15, is scale * (code - 8) + (8 * scale - offset).
    """
    import torch

    rows, count, group = weights.codes.shape
    signed = weights.offset is None
    codes = weights.codes.astype(np.int32) + (8 if signed else 0)
    rest = np.zeros_like(weights.scale) if weights.offset is None else 8 * weights.scale - weights.offset
    pairs = np.stack([weights.scale, rest], -1).swapaxes(0, 1)
    flat = torch.from_numpy(np.ascontiguousarray(codes.reshape(rows, count * group)))
    scales = torch.from_numpy(np.ascontiguousarray(pairs)).to(place)
    if place.type != "cuda":
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(flat, 1), scales.to(dtype)
    from localspec.decoder.kernels import products

    return products.packed_four(flat.to(torch.uint8).to(place)), scales.to(torch.float16)


def _suits_four(weights: Affine) -> bool:
    """Return whether torch has products for a matrix as it is stored."""
    rows, count, group = weights.codes.shape
    return weights.bits == 4 and group in GROUPS and rows % 16 == 0 and count * group % 64 == 0


def _eight(weights: Affine) -> Affine:
    """Return a matrix in 8 bits, exactly the same one if 8 bits can hold it.

    They hold codes without offsets, 4-bit codes less a whole zero point, and 8-bit ones with an offset for
    each row.
    """
    if weights.offset is None:
        return Affine(8, weights.codes, weights.scale, None)
    if weights.bits == 8 and weights.codes.shape[1] == 1:
        return weights
    zeros = np.rint(weights.offset / np.where(weights.scale == 0, np.float32(1), weights.scale))
    whole = np.allclose(zeros * weights.scale, weights.offset, rtol=1e-6, atol=0)
    if weights.bits == 4 and whole and np.abs(zeros).max() <= MOST_ZERO:
        codes = weights.codes.astype(np.int16) - zeros.astype(np.int16)[..., None]
        return Affine(8, codes.astype(np.int8), weights.scale, None)
    values = weights.values()
    return eight_bits(lambda rows: values[rows], len(values))
