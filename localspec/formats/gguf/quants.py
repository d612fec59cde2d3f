"""The block formats of GGUF as codes, scales and offsets, without rounding.

Every affine format is unpacked to one form, weight = scale * code - offset for each group of columns, by the
block layouts of ggml (ggml-common.h; ggml-quants.c, dequantize_row_*).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ByteArray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Affine:
    """Weights [rows, groups, width] as codes, with a float32 scale and offset [rows, groups] per group.

    `codes` are uint8 below 2**bits, or int8 for the symmetric formats, whose `offset` is None. With 16 bits
    they are the weights themselves, and every scale is 1.
    """

    bits: int
    codes: NDArray[np.uint8] | NDArray[np.int8] | NDArray[np.float16]
    scale: NDArray[np.float32]
    offset: NDArray[np.float32] | None

    def values(self) -> NDArray[np.float32]:
        """Return the dequantized weights [rows, columns]."""
        with np.errstate(over="ignore", invalid="ignore"):  # damaged scales, which readers then refuse
            weights = self.codes.astype(np.float32) * self.scale[..., None]
            if self.offset is not None:
                weights -= self.offset[..., None]
        return weights.reshape(len(weights), -1)


def unpack(kind: str, raw: ByteArray) -> Affine | None:
    """Unpack the rows `raw` [rows, bytes] of a tensor of `kind`; return None if the kind is not affine."""
    reader = READERS.get(kind)
    return None if reader is None else reader(raw)


def _half(raw: ByteArray) -> NDArray[np.float32]:
    """Return float32 [...] of little-endian float16 [..., 2] bytes."""
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


def _blocks(raw: ByteArray, size: int) -> ByteArray:
    return raw.reshape(len(raw), -1, size)


def _nibbles(packed: ByteArray) -> ByteArray:
    """Return codes [..., 2n] of bytes [..., n]: all low halves first, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(packed: ByteArray) -> ByteArray:
    """Return 16 or 0 [..., 32] for each bit of the four bytes [..., 4]."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(4)


def _q8_0(raw: ByteArray) -> Affine:
    blocks = _blocks(raw, 34)
    return Affine(8, np.ascontiguousarray(blocks[..., 2:]).view(np.int8), _half(blocks[..., :2]), None)


def _q4_0(raw: ByteArray) -> Affine:
    blocks = _blocks(raw, 18)
    codes = _nibbles(blocks[..., 2:]).view(np.int8) - np.int8(8)
    return Affine(4, codes, _half(blocks[..., :2]), None)


def _q4_1(raw: ByteArray) -> Affine:
    blocks = _blocks(raw, 20)
    return Affine(4, _nibbles(blocks[..., 4:]), _half(blocks[..., :2]), -_half(blocks[..., 2:4]))


def _q5_0(raw: ByteArray) -> Affine:
    blocks = _blocks(raw, 22)
    codes = (_nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])).view(np.int8) - np.int8(16)
    return Affine(5, codes, _half(blocks[..., :2]), None)


def _q5_1(raw: ByteArray) -> Affine:
    blocks = _blocks(raw, 24)
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return Affine(5, codes, _half(blocks[..., :2]), -_half(blocks[..., 2:4]))


def _six_bit_scales(packed: ByteArray) -> tuple[ByteArray, ByteArray]:
    """Return the 8 scales and 8 offsets of a K block from its 12 bytes (get_scale_min_k4)."""
    low, middle, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=-1)
    offsets = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=-1)
    return scales, offsets


def _k_groups(blocks: ByteArray, codes: ByteArray, bits: int) -> Affine:
    """Assemble a K format with offsets from codes [rows, blocks, 8, 32]."""
    scales, offsets = _six_bit_scales(blocks[..., 4:16])
    rows = len(blocks)
    scale = _half(blocks[..., 0:2])[..., None] * scales
    offset = _half(blocks[..., 2:4])[..., None] * offsets
    return Affine(bits, codes.reshape(rows, -1, 32), scale.reshape(rows, -1), offset.reshape(rows, -1))


def _q4_k(raw: ByteArray) -> Affine:
    blocks = _blocks(raw, 144)
    pairs = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)
    codes = np.stack([pairs & 15, pairs >> 4], axis=-2)
    return _k_groups(blocks, codes, 4)


def _q5_k(raw: ByteArray) -> Affine:
    blocks = _blocks(raw, 176)
    pairs = blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32)
    codes = np.stack([pairs & 15, pairs >> 4], axis=-2).reshape(*blocks.shape[:2], 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = ((blocks[..., None, 16:48] >> shifts) & 1) << 4
    return _k_groups(blocks, codes | fifth, 5)


def _q6_k(raw: ByteArray) -> Affine:
    blocks = _blocks(raw, 210)
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=-2).reshape(*blocks.shape[:2], 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = (blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> shifts) & 3
    codes = (low | (high << 4)).view(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    scale = _half(blocks[..., 208:210])[..., None] * scales
    rows = len(raw)
    return Affine(6, codes.reshape(rows, -1, 16), scale.reshape(rows, -1), None)


READERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
