"""Matrices as an OpenVINO graph stores them: codes with scales and zero points, or floats.

NNCF, and localspec itself, write scale * (codes - zero) with the codes [rows, columns], or
[rows, groups, width] and a reshape behind them; all of it is computed from constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.gguf.quants import Affine
from localspec.formats.graph.weights import eight_bits
from localspec.formats.graph_weights.ports import (
    FLOATS,
    OTHER,
    Node,
    Port,
    both,
    constant,
    element,
    floats,
    kind,
    shape,
    source,
    through,
)

BITS = {"i4": 4, "u4": 4, "i8": 8, "u8": 8}
SIGNED = ("i4", "i8")


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix of a graph: a constant of `codes`, with constants of scales and of zero points.

    `sizes` are its rows, groups of columns and their width. One without `scale` has floats. `rests` holds
    what is added for each group of columns, in a second product (formats/graph/linear.py).
    """

    codes: Node
    sizes: tuple[int, int, int]
    scale: Node | None = None
    zero: Node | None = None
    rests: Node | None = None

    @property
    def columns(self) -> int:
        """The number of its columns."""
        return self.sizes[1] * self.sizes[2]

    @property
    def bits(self) -> int:
        """The bits of a code, 16 for floats."""
        return BITS.get(element(self.codes), 16)

    def equals(self, other: Stored) -> bool:
        """Return whether another matrix is the same, code for code."""
        pairs = [(getattr(self, part), getattr(other, part)) for part in ("codes", "scale", "zero", "rests")]
        return self.sizes == other.sizes and all(_equal(*pair) for pair in pairs)

    def affine(self, first: int = 0, count: int | None = None) -> Affine:
        """Return some rows, or all, as they are stored; floats in 8 bits with a scale for a group.

        Codes around the middle of their range become signed ones without offsets. Raises BrokenModel for
        numbers that are not finite.
        """
        rows = slice(first, self.sizes[0] if count is None else first + count)
        if self.scale is None:
            values = floats(self.codes)[rows]
            return eight_bits(lambda part: values[part], len(values))
        codes = _codes(self.codes, rows).reshape(-1, *self.sizes[1:])
        scale = self._grouped(floats(self.scale), rows)
        if not np.isfinite(scale).all():
            raise BrokenModel(
                f"The scales of `{self._name}` hold numbers that are not finite", "Download it again"
            )
        half = np.uint8(1 << (self.bits - 1))
        signed = element(self.codes) in SIGNED
        if self.zero is None and self.rests is None and signed:
            return Affine(self.bits, codes.view(np.int8), scale, None)
        above = codes + half if signed else codes  # wraps around, as codes of 8 bits do
        zeros = np.zeros((1, 1), np.float32) if self.zero is None else self._zeros(rows)
        zeros = zeros + (half if signed else 0)
        if self.bits == 4:
            above = above & np.uint8(15)
        if self.rests is None and (zeros == half).all():
            return Affine(self.bits, (above - half).view(np.int8), scale, None)
        offset = zeros * scale
        if self.rests is not None:
            offset = offset - self._grouped(floats(self.rests), rows)
        return Affine(self.bits, above, scale, np.ascontiguousarray(offset, np.float32))

    def _zeros(self, rows: slice) -> NDArray[np.float32]:
        """Return the zero points [rows, groups]."""
        assert self.zero is not None
        kept = element(self.zero)
        if kept in FLOATS:
            return self._grouped(floats(self.zero), rows)
        stored = _codes(self.zero, slice(None))
        values = stored.view(np.int8) if kept in SIGNED else stored
        return self._grouped(values.reshape(shape(self.zero)).astype(np.float32), rows)

    def _grouped(self, values: NDArray[np.float32], rows: slice) -> NDArray[np.float32]:
        """Return numbers [rows, groups] of a constant, which may have fewer that hold for all."""
        if values.ndim == 3:
            values = values[..., 0]
        whole = np.broadcast_to(values, self.sizes[:2])
        return np.ascontiguousarray(whole[rows])

    @property
    def _name(self) -> str:
        return printable(str(self.codes.get_friendly_name()))


def stored_of(port: Port) -> Stored:
    """Return the matrix [rows, columns] that a port has; raises UnsupportedModel for any other form."""
    whole, port = port, through(port, "Reshape")
    codes = constant(port)
    if codes is not None:
        if element(codes) not in FLOATS or len(shape(codes)) != 2:
            raise _unknown(codes)
        return Stored(codes, (shape(codes)[0], 1, shape(codes)[1]))
    scale: Node | None = None
    zero: Node | None = None
    if kind(port) == "Multiply":
        (port, scale) = _split(port)
    if kind(port) == "Subtract":
        zero, port = constant(source(port, 1)), source(port, 0)
    codes = constant(port)
    if codes is None or scale is None:
        raise UnsupportedModel(
            f"A matrix of the graph is computed by `{kind(port)}` (`{printable(_friendly(port))}`), "
            "which the torch engine cannot read",
            OTHER,
        )
    found = _checked(codes, scale, zero)
    if [size.get_length() for size in whole.get_partial_shape()] != [found.sizes[0], found.columns]:
        raise _unknown(codes)
    return found


def _split(port: Port) -> tuple[Port, Node | None]:
    """Return the codes that are multiplied, and the constant of their scales, which has floats."""
    for codes, scale in both(port):
        found = constant(scale)
        if found is not None and element(found) in FLOATS:
            return codes, found
    return port, None


def _checked(codes: Node, scale: Node, zero: Node | None) -> Stored:
    """Return codes, scales and zero points that fit each other."""
    found = shape(codes)
    if element(codes) not in BITS or len(found) not in (2, 3):
        raise _unknown(codes)
    sizes = (found[0], 1, found[1]) if len(found) == 2 else (found[0], found[1], found[2])
    for part in (scale, zero):
        if part is not None and not _fits(shape(part), sizes):
            raise _unknown(part)
    if zero is not None and element(zero) not in (*BITS, *FLOATS):
        raise _unknown(zero)
    if element(codes) in ("i4", "u4") and sizes[1] * sizes[2] % 2:
        raise _unknown(codes)
    return Stored(codes, sizes, scale, zero)


def _fits(part: tuple[int, ...], sizes: tuple[int, int, int]) -> bool:
    """Return whether a constant has a number for each group of columns, or one for several of them."""
    rows, groups, _ = sizes
    wanted = (rows, groups, 1)
    if all(size == 1 for size in part):
        return True
    if len(part) == 2 and groups == 1:
        part = (*part, 1)
    return len(part) == 3 and all(size in (1, most) for size, most in zip(part, wanted, strict=True))


def _codes(node: Node, rows: slice) -> NDArray[np.uint8]:
    """Return the codes of some rows of a constant as bytes [rows, columns]; signed ones by their bits.

    Those of 4 bits are extended to a byte, by their sign if they have one.
    """
    data = np.ascontiguousarray(node.data).view(np.uint8).reshape(-1)
    found = shape(node)
    count = found[0] if found else 1
    columns = int(np.prod(found[1:], dtype=np.int64))
    if BITS[element(node)] == 8:
        return np.array(data.reshape(count, columns)[rows])
    if columns % 2:  # rows do not begin at a byte: small constants of zero points
        pairs = np.stack([data & 15, data >> 4], -1).reshape(-1)[: count * columns]
        codes = pairs.reshape(count, columns)[rows]
    else:
        packed = data[: count * columns // 2].reshape(count, columns // 2)[rows]
        codes = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), columns)
    if element(node) == "i4":
        codes = (codes ^ np.uint8(8)) - np.uint8(8)
    return np.asarray(codes, np.uint8)


def _equal(one: Node | None, other: Node | None) -> bool:
    """Return whether two constants hold the same bytes, or neither is there."""
    if one is None or other is None or one == other:
        return one is other or one == other
    if element(one) != element(other) or shape(one) != shape(other):
        return False
    left, right = (np.asarray(node.data).view(np.uint8) for node in (one, other))
    return bool(np.array_equal(left, right))


def _friendly(port: Port) -> str:
    return str(port.get_node().get_friendly_name())


def _unknown(node: Any) -> UnsupportedModel:
    """Return the error of a constant in a form that is not known."""
    sizes = " x ".join(f"{size:,}" for size in shape(node)) or "one number"
    return UnsupportedModel(
        f"The constant `{printable(str(node.get_friendly_name()))}` holds {sizes} in `{element(node)}`, "
        "which the torch engine cannot read as part of a matrix",
        OTHER,
    )
