"""Products, norms, scales and rotations in a decoder's graph, as OpenVINO's tools and ours write them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.formats.gguf.quants import Affine
from localspec.formats.graph_weights.ports import (
    Port,
    both,
    constant,
    floats,
    kind,
    number,
    piece,
    same,
    shape,
    source,
    through,
    whole_numbers,
)
from localspec.formats.graph_weights.stored import Stored, stored_of


class Product(NamedTuple):
    """The product of `x` and some rows of a matrix, the first of them `first`, with a `bias` [all rows].

    `factors` [rows] multiply the rows and their biases.
    """

    x: Port
    matrix: Stored
    first: int
    rows: int
    bias: NDArray[np.float32] | None = None
    factors: NDArray[np.float32] | None = None

    def biases(self) -> NDArray[np.float32] | None:
        """Return the biases of its own rows, None if it has none."""
        if self.bias is None:
            return None
        own = self.bias[self.first : self.first + self.rows]
        return own if self.factors is None else own * self.factors

    def affine(self) -> Affine:
        """Return its own rows as they are stored, times their factors."""
        found = self.matrix.affine(self.first, self.rows)
        if self.factors is None:
            return found
        each = self.factors[:, None]
        offset = None if found.offset is None else found.offset * each
        return replace(found, scale=found.scale * each, offset=offset)


class Norm(NamedTuple):
    """The norm of `x`; its weight is None where that is 1."""

    x: Port
    weight: NDArray[np.float32] | None
    epsilon: float


class Turns(NamedTuple):
    """Rotations of positions by `rates`, whose cosines and sines are times `scale`."""

    rates: NDArray[np.float32]
    scale: float


def product_of(port: Port) -> Product | None:
    """Return the product with a matrix that a port has, or a piece of one; None for anything else.

    Raises UnsupportedModel for a matrix in an unknown form.
    """
    port = through(port)
    if cut := piece(port):
        data, first, rows = cut
        whole = product_of(data)
        return whole and whole._replace(first=whole.first + first, rows=rows)
    if kind(port) == "Add":
        return _biased(port) or _with_rests(port)
    if kind(port) != "MatMul" or not _constant(source(port, 1)):
        return None
    flags = port.get_node().get_attributes()
    if flags["transpose_a"] or not flags["transpose_b"]:
        return None
    matrix = stored_of(source(port, 1))
    return Product(source(port, 0), matrix, 0, matrix.sizes[0])


def norm_of(port: Port) -> Norm | None:
    """Return the norm that a port has: x / sqrt(mean(x^2) + epsilon), times a weight (2019, Zhang et al.)."""
    port, weight = through(port), None
    if kind(port) != "Multiply":
        return None
    for inner, other in both(port):
        found = constant(other)
        if found is not None:
            if int(np.prod(shape(found)[:-1])) != 1:
                return None
            port, weight = inner, floats(found).reshape(-1)
    if kind(port) != "Multiply":
        return None
    for x, length in both(port):
        epsilon = _epsilon(length, x)
        if epsilon is not None:
            return Norm(x, weight, epsilon)
    return None


def unscaled(port: Port) -> tuple[Port, float]:
    """Return what a port has before it is multiplied with, or divided by, one number, and that factor."""
    port = through(port)
    if kind(port) == "Divide" and (divisor := number(source(port, 1))):
        return source(port, 0), 1 / divisor
    if kind(port) == "Multiply":
        for x, other in both(port):
            factor = number(other)
            if factor is not None:
                return x, factor
    return port, 1.0


def rotated(port: Port) -> tuple[Port, Turns | None] | None:
    """Return queries or keys before their rotation, and the rotation; None for one of another kind.

    The first columns of each head may be rotated alone.
    """
    rest: Port | None = None
    if kind(port) == "Concat" and len(port.get_node().inputs()) == 2:
        port, rest = source(port, 0), source(port, 1)
    if kind(port) != "Add":
        return (port, None) if rest is None else None
    for plain, turned in both(port):
        found = _turned(plain, turned)
        if found is None:
            continue
        x, turns = found
        if kind(x) != "Slice":
            return None if rest is not None else (x, turns)
        cut, left = piece(x), None if rest is None else piece(rest)
        if cut is None or cut[1:] != (0, 2 * len(turns.rates)):
            return None
        if rest is not None and (left is None or not same(left[0], cut[0]) or left[1] != cut[2]):
            return None
        return cut[0], turns
    return None


def _turned(plain: Port, turned: Port) -> tuple[Port, Turns] | None:
    """Return x and its rotation for the summands x cos and (-second half, first half) sin of it."""
    if kind(plain) != "Multiply" or kind(turned) != "Multiply":
        return None
    for x, cosine in both(plain):
        for halves, sine in both(turned):
            turns = _turns(cosine, sine)
            if turns is not None and _swaps(halves, x, len(turns.rates)):
                return x, turns
    return None


def _swaps(halves: Port, x: Port, half: int) -> bool:
    """Return whether `halves` are the second half of x, negated, before the first."""
    if kind(halves) != "Concat" or len(halves.get_node().inputs()) != 2:
        return False
    minus, first = source(halves, 0), source(halves, 1)
    second, factor = unscaled(minus)
    lower, upper = piece(first), piece(second)
    if factor != -1 or lower is None or upper is None or not (same(lower[0], x) and same(upper[0], x)):
        return False
    return lower[1:] == (0, half) and upper[1:] == (half, half)


def _turns(cosine: Port, sine: Port) -> Turns | None:
    """Return the rotation of a cosine and a sine, which must be of the same angles."""
    found, other = _angles(cosine, "Cos"), _angles(sine, "Sin")
    if found is None or other is None:
        return None
    angles, scale = found
    if not same(angles, other[0]) or scale != other[1] or kind(angles) != "Concat":
        return None
    if len(angles.get_node().inputs()) != 2:
        return None
    once, again = (through(source(angles, at), "Transpose") for at in (0, 1))
    if not same(once, again) or kind(once) != "MatMul":
        return None
    for rates, positions in both(once):
        stored = constant(through(rates, "Broadcast", "Unsqueeze"))
        start = through(positions, "Unsqueeze", "Reshape")
        if stored is not None and kind(start) == "Parameter" and "position_ids" in start.get_names():
            return Turns(floats(stored).reshape(-1), scale)
    return None


def _angles(port: Port, function: str) -> tuple[Port, float] | None:
    """Return the angles of a cosine or sine, and what it is multiplied with; None for anything else."""
    scale = 1.0
    port = through(port, "Unsqueeze")
    if kind(port) == "Multiply":
        port, scale = unscaled(port)
        port = through(port, "Unsqueeze")
    return (source(port, 0), scale) if kind(port) == function else None


def _epsilon(length: Port, x: Port) -> float | None:
    """Return epsilon if `length` is 1 / sqrt(mean(x^2) + epsilon), None for anything else."""
    if kind(length) == "Divide" and number(source(length, 0)) == 1 and kind(source(length, 1)) == "Sqrt":
        total = source(source(length, 1), 0)
    elif kind(length) == "Power" and number(source(length, 1)) == -0.5:
        total = source(length, 0)
    else:
        return None
    if kind(total) != "Add":
        return None
    for mean, epsilon in both(total):
        value = number(epsilon)
        if (
            value is not None
            and 0 <= value <= 1
            and kind(mean) == "ReduceMean"
            and _square(source(mean, 0), x)
        ):
            axes, rank = whole_numbers(source(mean, 1)), len(x.get_partial_shape())
            return value if axes in ([-1], [rank - 1]) else None
    return None


def _square(port: Port, x: Port) -> bool:
    if kind(port) == "Power":
        return number(source(port, 1)) == 2 and same(source(port, 0), x)
    return kind(port) == "Multiply" and all(same(source(port, at), x) for at in (0, 1))


def _constant(port: Port) -> bool:
    """Return whether a matrix is computed from constants alone."""
    while (node := port.get_node()).inputs():
        port = node.input_value(0)
    return kind(port) == "Constant"


def _biased(port: Port) -> Product | None:
    """Return a product with its bias."""
    for product, other in both(port):
        bias = constant(other)
        if bias is not None and (found := product_of(product)):
            values = floats(bias).reshape(-1)
            if found.bias is None and len(values) == found.matrix.sizes[0]:
                return found._replace(bias=values)
    return None


def _with_rests(port: Port) -> Product | None:
    """Return a product whose matrix has rests for its groups, in a second product (graph/linear.py)."""
    for main, other in both(port):
        if kind(main) != "MatMul" or kind(other) != "MatMul" or kind(source(other, 0)) != "ReduceSum":
            continue
        sums, rests = source(source(other, 0), 0), constant(source(other, 1))
        found = product_of(main)
        if found and rests is not None and kind(sums) == "Reshape" and same(source(sums, 0), found.x):
            matrix = found.matrix
            if matrix.rests is None and shape(rests) == matrix.sizes[:2]:
                return found._replace(matrix=replace(matrix, rests=rests))
    return None


def halves_of(port: Port) -> tuple[Product, Product] | None:
    """Return the products of gate and up in Swish(gate) * up, None for anything else.

    AWQ (Lin et al. 2023) leaves factors of columns on the way, which then are those of the rows of up.
    """
    port, factors = _each_scaled(port)
    if kind(port) != "Multiply":
        return None
    for active, other in both(port):
        active, more = _each_scaled(active)
        if kind(active) != "Swish":
            continue
        inputs = active.get_node().inputs()
        if len(inputs) == 2 and number(source(active, 1)) != 1:
            return None
        gate, up = product_of(source(active, 0)), product_of(other)
        if gate and up:
            given = [each for each in (factors, more) if each is not None]
            return gate, up._replace(factors=np.prod(given, axis=0)) if given else up
    return None


def _each_scaled(port: Port) -> tuple[Port, NDArray[np.float32] | None]:
    """Return what a port has before each of its columns is multiplied with a factor, and the factors."""
    if kind(port) == "Multiply":
        for x, other in both(port):
            found = constant(other)
            if found is not None and 1 < int(np.prod(shape(found))) == shape(found)[-1]:
                return x, floats(found).reshape(-1)
    return port, None
