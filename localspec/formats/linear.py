"""Matrix products of an OpenVINO graph, with weights as a GGUF file has them.

The plug-ins have a fast path for four-bit codes with a scale and an integer zero point a group. The minimum
of Q4_1 and Q4_K is not a whole number of steps: rounding it there costs 9 to 21 % perplexity (measured). So

    W x = scale (codes - zero) x - rest x,    rest = minimum - zero * scale, one number a group
        = the fast product               - rest (sum of x over each group)

and the second product is an eighth of the first one's bytes. Or the codes are stored in eight bits, with a
zero point 16 times finer: no second product, and a start three times as quick, for more bytes. That is the
better form where calls or arithmetic cost more than bytes: small models, machines of two cores (measured).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.formats.quants import Affine
from localspec.formats.weights import GROUP

Node = Any  # openvino.Node; its stubs know too little of the operators


class Linear:
    """Makes the products of one graph; `fine` stores minima in eight-bit codes, not in a second product."""

    def __init__(self, fine: bool) -> None:
        self._fine = fine
        self._sums: dict[str, Node] = {}

    def table(self, weights: Affine) -> Node:
        """Return the matrix [rows, columns] in float32, for a lookup or a product."""
        return self._matrix(*self._parts(weights)[:3])

    def product(self, x: Node, weights: Affine, bias: NDArray[np.float32] | None = None) -> Node:
        """Return x [..., columns] times the transposed weights, plus `bias` [rows]."""
        from openvino import opset13 as ops

        codes, zero, scale, rest = self._parts(weights)
        y = ops.matmul(x, self._matrix(codes, zero, scale), False, True)
        if rest is not None:
            correction = ops.convert(ops.constant((-rest).astype(np.float16)), "f32")
            y = ops.add(y, ops.matmul(self._group_sums(x), correction, False, True))
        return y if bias is None else ops.add(y, ops.constant(bias.reshape(1, 1, -1)))

    def _parts(self, weights: Affine) -> tuple[Node, Node | None, NDArray[np.float32], Any]:
        """Return codes, zero points, scale [rows, groups] and what the zero points leave, if anything."""
        from openvino import opset13 as ops

        if weights.minimum is None:
            codes = four_bits(weights.codes, "i4") if weights.bits == 4 else ops.constant(weights.codes)
            return codes, None, weights.scale, None
        scale = weights.scale / np.float32(16 if self._fine else 1)
        most = 255 if self._fine else 15
        steps = weights.minimum / np.where(scale == 0, np.float32(1), scale)
        zero = np.rint(steps).clip(0, most).astype(np.uint8)
        if self._fine:
            codes, zeros = ops.constant(weights.codes * np.uint8(16)), ops.constant(zero[..., None])
            return codes, zeros, scale, None
        codes, zeros = four_bits(weights.codes, "u4"), four_bits(zero[..., None], "u4")
        return codes, zeros, scale, weights.minimum - zero.astype(np.float32) * scale

    def _matrix(self, codes: Node, zero: Node | None, scale: NDArray[np.float32]) -> Node:
        """Return (codes - zero) * scale as [rows, columns], in the form the plug-ins know as compressed."""
        from openvino import opset13 as ops

        steps = ops.convert(codes, "f16")
        if zero is not None:
            steps = ops.subtract(steps, ops.convert(zero, "f16"))
        groups = ops.multiply(steps, ops.constant(scale[..., None].astype(np.float16)))
        rows, count = scale.shape
        flat = ops.reshape(groups, ops.constant(np.array([rows, count * GROUP], np.int64)), False)
        return ops.convert(flat, "f32")

    def _group_sums(self, x: Node) -> Node:
        """Return the sums of x [..., columns] over each group, made once for each x."""
        from openvino import opset13 as ops

        name = x.get_node().get_friendly_name() if hasattr(x, "get_node") else x.get_friendly_name()
        if name not in self._sums:
            groups = ops.reshape(x, ops.constant(np.array([0, 0, -1, GROUP], np.int64)), True)
            self._sums[name] = ops.reduce_sum(groups, ops.constant(np.array([-1], np.int64)), False)
        return self._sums[name]


def four_bits(codes: NDArray[Any], kind: str) -> Node:
    """Return a constant of four-bit `codes`, two a byte, the first in the low half."""
    import openvino as ov
    from openvino import opset13 as ops

    flat = codes.reshape(-1).view(np.uint8) & 15
    if len(flat) % 2:
        flat = np.append(flat, np.uint8(0))
    packed = flat[0::2] | (flat[1::2] << 4)
    shape, element = ov.Shape(list(codes.shape)), getattr(ov.Type, kind)
    tensor = ov.Tensor(element, shape)
    ov.Tensor(packed, shape, element).copy_to(tensor)
    return ops.constant(tensor)
