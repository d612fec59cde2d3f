"""Matrix products of an OpenVINO graph, with the weights of a GGUF file.

The plug-ins have a fast path for 4-bit codes with a scale and an integer zero point per group. The offset of
Q4_1 and Q4_K is no multiple of the scale: rounding it to one costs 9 to 21 % perplexity (measured). So

    W x = scale (codes - zero) x - rest x,    rest = offset - zero * scale, one number per group
        = the fast product               - rest (sum of x over each group)

and the second product has an eighth of the first one's bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.formats.gguf.quants import Affine

TAIL = 65536  # bytes at the end of a graph's file, where its facts are
GROUP = re.compile(rb'<group_size value="(\d+)" ?/>')  # NNCF's name, under its own heading
FORM = re.compile(rb'<weights value="([^"]+)" ?/>')

Node = Any  # openvino.Node; its stubs lack the operators


class Linear:
    """Builds the matrix products of one graph."""

    def __init__(self) -> None:
        self.sizes: Counter[tuple[int, int]] = (
            Counter()
        )  # weights by their bits and the width of their groups
        self._sums: dict[str, Node] = {}

    def table(self, weights: Affine) -> Node:
        """Return the matrix [rows, columns] in float32, for a lookup; it must have no offsets."""
        assert weights.offset is None
        return self._matrix(weights, None)

    def product(self, x: Node, weights: Affine, bias: NDArray[np.float32] | None = None) -> Node:
        """Return x [..., columns] times the transposed weights, plus `bias` [rows]."""
        from openvino import opset13 as ops

        if weights.offset is None:
            y = ops.matmul(x, self._matrix(weights, None), False, True)
        else:
            steps = weights.offset / np.where(weights.scale == 0, np.float32(1), weights.scale)
            zero = np.rint(steps).clip(0, 15)
            rest = (zero * weights.scale - weights.offset).astype(np.float16)
            y = ops.matmul(x, self._matrix(weights, zero.astype(np.uint8)), False, True)
            if rest.any():
                sums = self._group_sums(x, weights.codes.shape[-1])
                y = ops.add(y, ops.matmul(sums, ops.convert(ops.constant(rest), "f32"), False, True))
        return y if bias is None else ops.add(y, ops.constant(bias.reshape(1, 1, -1)))

    def note(self, model: Any) -> None:
        """Write into an openvino.Model how its matrices are compressed, most weights first."""
        compressed = {form: count for form, count in self.sizes.items() if form[0] < 16}
        if compressed:
            forms = sorted(compressed, key=lambda form: -compressed[form])
            text = ", ".join(f"{bits} bits with a scale for {group}" for bits, group in forms)
            model.set_rt_info(text, ["localspec", "weights"])
            model.set_rt_info(min(group for _, group in forms), ["localspec", "group_size"])

    def _matrix(self, weights: Affine, zero: NDArray[np.uint8] | None) -> Node:
        """Return scale * (codes - zero) [rows, columns], in the pattern that the plug-ins keep compressed."""
        from openvino import opset13 as ops

        if weights.bits == 16:
            flat = np.ascontiguousarray(weights.codes).reshape(len(weights.codes), -1)
            return ops.convert(ops.constant(flat), "f32")
        self.sizes[weights.bits, weights.codes.shape[-1]] += weights.codes.size
        if weights.bits == 4:
            codes = four_bits(weights.codes, "i4" if zero is None else "u4")
        else:
            codes = ops.constant(weights.codes)
        steps = ops.convert(codes, "f16")
        if zero is not None:
            steps = ops.subtract(steps, ops.convert(four_bits(zero[..., None], "u4"), "f16"))
        groups = ops.multiply(steps, ops.constant(weights.scale[..., None].astype(np.float16)))
        rows, count, group = weights.codes.shape
        flat = ops.reshape(groups, ops.constant(np.array([rows, count * group], np.int64)), False)
        return ops.convert(flat, "f32")

    def _group_sums(self, x: Node, group: int) -> Node:
        """Return the sums of x [..., columns] over each `group` of columns, one node per x."""
        from openvino import opset13 as ops

        name = x.get_node().get_friendly_name() if hasattr(x, "get_node") else x.get_friendly_name()
        if name not in self._sums:
            groups = ops.reshape(x, ops.constant(np.array([0, 0, -1, group], np.int64)), True)
            self._sums[name] = ops.reduce_sum(groups, ops.constant(np.array([-1], np.int64)), False)
        return self._sums[name]


def four_bits(codes: NDArray[Any], kind: str) -> Node:
    """Return a constant of 4-bit `codes`, two per byte, the first in the low half."""
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


def noted_group(graph: Path) -> int | None:
    """Return the smallest group of columns that share a scale, as a graph's file notes it.

    None if it notes none, or a scale for each row.
    """
    found = GROUP.search(_facts(graph))
    return int(found[1]) or None if found else None


def noted_form(graph: Path) -> str | None:
    """Return in words how a graph's matrices are compressed; None for a graph of another program."""
    found = FORM.search(_facts(graph))
    return found[1].decode() if found else None


def _facts(graph: Path) -> bytes:
    try:
        with graph.open("rb") as file:
            file.seek(max(graph.stat().st_size - TAIL, 0))
            return file.read()
    except OSError:
        return b""
