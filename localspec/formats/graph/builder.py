"""Build a decoder as a stateful OpenVINO graph, as OpenVINO's own tools do.

Inputs: input_ids, attention_mask, position_ids [batch, tokens] and beam_idx [batch]; output: logits
[batch, tokens, vocab]. Keys and values are variables that grow with each call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.formats.gguf.quants import Affine
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.linear import Linear, Node
from localspec.formats.graph.weights import Weights

INPUTS = {
    "input_ids": ("i64", 2),
    "attention_mask": ("i64", 2),
    "position_ids": ("i64", 2),
    "beam_idx": ("i32", 1),
}


class Graph:
    """Builds the graph of one decoder, layer by layer."""

    def __init__(self, shape: Architecture, weights: Weights) -> None:
        from openvino import opset13 as ops

        self.shape = shape
        self.weights = weights
        self.ops: Any = ops
        self.inputs = {name: self._input(name, kind, rank) for name, (kind, rank) in INPUTS.items()}
        self.sinks: list[Node] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Node] = {}
        self.linear = Linear()

    def model(self, on_layer: Callable[[], None] = lambda: None) -> Any:
        """Return the openvino.Model; raises BrokenModel if a tensor is missing.

        `on_layer` is called after each layer.
        """
        import openvino as ov

        table = self.weights.table("token_embd")
        self.vocab = len(table.codes)
        embedding = self.linear.table(table)
        x = self._scaled(self._embedded(embedding), self.shape.embedding_scale)
        self._add_shared()
        for layer in range(self.shape.layers):
            x = self._layer(x, f"blk.{layer}.")
            on_layer()
        x = self._norm(x, "output_norm.weight")
        head = table if self.shape.tied else self.weights.matrix("output")
        logits = self._scaled(self.linear.product(x, head), self.shape.logit_scale)
        logits.output(0).get_tensor().set_names({"logits"})
        inputs = list(self.inputs.values())
        model = ov.Model([self.ops.result(logits)], self.sinks, inputs, self.shape.family)
        self.linear.note(model)
        return model

    def _embedded(self, table: Node) -> Node:
        """Return what the first layer reads, [batch, tokens, width], with the embedding [vocab, width]."""
        return self.ops.gather(table, self.inputs["input_ids"], self.ops.constant(np.int32(0)))

    def _input(self, name: str, kind: str, rank: int) -> Node:
        import openvino as ov

        node = self.ops.parameter(ov.PartialShape([-1] * rank), getattr(ov.Type, kind), name=name)
        node.output(0).get_tensor().set_names({name})
        return node

    def _add_shared(self) -> None:
        """Add the nodes that all layers share: the batch size, the rotary angles and the mask."""
        ops = self.ops
        sizes = ops.shape_of(self.inputs["input_ids"])
        self.batch = ops.gather(sizes, self._ints(0), self._int(0))
        self.cosine, self.sine = self._angles()
        self.mask = self._mask(ops.gather(sizes, self._ints(1), self._int(0)))

    def _angles(self) -> tuple[Node, Node]:
        """Return cosines and sines [batch, 1, tokens, head_width] of the positions."""
        ops = self.ops
        half = len(self.shape.frequencies)
        rates = ops.constant(self.shape.frequencies.reshape(1, half, 1))
        rates = ops.broadcast(rates, ops.concat([self.batch, self._ints(half), self._ints(1)], 0))
        positions = ops.convert(ops.unsqueeze(self.inputs["position_ids"], self._ints(1)), "f32")
        turns = ops.transpose(ops.matmul(rates, positions, False, False), self._ints(0, 2, 1))
        angles = ops.concat([turns, turns], -1)
        parts = (ops.unsqueeze(part(angles), self._ints(1)) for part in (ops.cos, ops.sin))
        cosine, sine = (self._scaled(part, self.shape.rope_scale) for part in parts)
        return cosine, sine

    def _mask(self, tokens: Node) -> Node:
        """Return the mask [batch, 1, tokens, total]: 0 where a new token attends, else the lowest float."""
        ops, seen = self.ops, self.inputs["attention_mask"]
        total = ops.gather(ops.shape_of(seen), self._ints(1), self._int(0))
        start, end = (ops.squeeze(part, self._ints(0)) for part in (ops.subtract(total, tokens), total))
        rows = ops.range(start, end, self._int(1), "i64")
        columns = ops.range(self._int(0), end, self._int(1), "i64")
        causal = ops.less_equal(ops.unsqueeze(columns, self._ints(0)), ops.unsqueeze(rows, self._ints(1)))
        shown = ops.unsqueeze(ops.convert(seen, "boolean"), self._ints(1, 2))
        both = ops.logical_and(ops.unsqueeze(causal, self._ints(0, 1)), shown)
        hidden = np.float32(-65504)  # the lowest float16: with -inf a fully masked row would be NaN
        return ops.select(both, self._float(0), self._float(float(hidden)))

    def _layer(self, x: Node, name: str) -> Node:
        """Return x after a layer: attention and a feed-forward network, each added to what it reads."""
        for part, before, after in (
            (self._attention, "attn_norm", "post_attention_norm"),
            (self._feed_forward, "ffn_norm", "post_ffw_norm"),
        ):
            if self.shape.norms_after:
                y = self._norm(part(x, name), f"{name}{after}.weight")
            else:
                y = part(self._norm(x, f"{name}{before}.weight"), name)
            x = self.ops.add(x, self._scaled(y, self.shape.residual_scale))
        return x

    def _feed_forward(self, x: Node, name: str) -> Node:
        gate, up = self._products(x, name, "ffn_gate", "ffn_up")
        return self._products(self.ops.multiply(self.ops.swish(gate), up), name, "ffn_down")[0]

    def _attention(self, x: Node, name: str) -> Node:
        ops, shape = self.ops, self.shape
        queries, keys, values = self._products(x, name, "attn_q", "attn_k", "attn_v")
        layer = name.split(".")[1]
        queries = self._heads(queries, shape.heads, f"{name}attn_q_norm.weight")
        keys = self._heads(keys, shape.key_heads, f"{name}attn_k_norm.weight")
        if int(layer) not in shape.unrotated:
            queries, keys = self._rotated(queries), self._rotated(keys)
        values = self._heads(values, shape.key_heads, None)
        keys, values = (
            self._repeated(self._cached(part, f"past_key_values.{layer}.{kind}present.{layer}.{kind}"))
            for part, kind in ((keys, "key"), (values, "value"))
        )
        scale = self._float(
            shape.head_width**-0.5 if shape.attention_scale is None else shape.attention_scale
        )
        mixed = ops.scaled_dot_product_attention(queries, keys, values, self.mask, scale, False)
        flat = self._ints(0, 0, shape.heads * shape.head_width)
        mixed = ops.reshape(ops.transpose(mixed, self._ints(0, 2, 1, 3)), flat, True)
        return self._products(mixed, name, "attn_output")[0]

    def _products(self, x: Node, name: str, *parts: str) -> list[Node]:
        """Return x times each matrix; matrices in one format share a product, which is faster."""
        matrices = [rows_of(self.shape, self.weights, f"{name}{part}") for part in parts]
        results: dict[int, Node] = {}
        for format in dict.fromkeys(form_of(weights) for weights, _ in matrices):
            same = [at for at, (weights, _) in enumerate(matrices) if form_of(weights) == format]
            results |= dict(zip(same, self._joined(x, [matrices[at] for at in same]), strict=True))
        return [results[at] for at in range(len(parts))]

    def _joined(self, x: Node, matrices: list[tuple[Affine, NDArray[np.float32] | None]]) -> list[Node]:
        """Return x times each matrix plus its bias, computed by one product and a split."""
        sizes = [len(weights.codes) for weights, _ in matrices]
        bias = None
        if any(part is not None for _, part in matrices):
            parts = zip(matrices, sizes, strict=True)
            bias = np.concatenate(
                [np.zeros(size, np.float32) if part is None else part for (_, part), size in parts]
            )
        y = self.linear.product(x, stacked([weights for weights, _ in matrices]), bias)
        if len(matrices) == 1:
            return [y]
        split = self.ops.variadic_split(y, self._int(-1), self._ints(*sizes))
        return [split.output(at) for at in range(len(matrices))]

    def _norm(self, x: Node, name: str) -> Node:
        return self._normed(x, self.weights.vector(name))

    def _normed(self, x: Node, weight: NDArray[np.float32]) -> Node:
        """Return x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019)."""
        ops = self.ops
        mean = ops.reduce_mean(ops.power(x, self._float(2)), self._ints(-1), True)
        length = ops.sqrt(ops.add(mean, self._float(self.shape.epsilon)))
        unit = ops.multiply(x, ops.divide(self._float(1), length))
        return ops.multiply(ops.constant(weight.reshape(1, 1, -1)), unit)

    def _heads(self, x: Node, heads: int, norm: str | None) -> Node:
        """Return x [batch, heads, tokens, head_width], with a norm per head, or over all, if there is one."""
        norm = norm if norm is not None and self.weights.has(norm) else None
        if norm and self.shape.norms_after:
            x = self._norm(x, norm)
        x = self.ops.reshape(x, self._ints(0, 0, heads, self.shape.head_width), True)
        if norm and not self.shape.norms_after:
            x = self._norm(x, norm)
        return self.ops.transpose(x, self._ints(0, 2, 1, 3))

    def _rotated(self, x: Node) -> Node:
        """Return x with its rotated columns turned by their angles, first half against second half."""
        ops, half = self.ops, len(self.shape.frequencies)
        whole = 2 * half == self.shape.head_width
        rotated = x if whole else self._columns(x, 0, 2 * half)
        first, second = self._columns(rotated, 0, half), self._columns(rotated, half, 2**62)
        minus = self._constant(np.full((1, 1, 1, 1), -1, np.float32))
        turned = ops.concat([ops.multiply(second, minus), first], -1)
        y = ops.add(ops.multiply(rotated, self.cosine), ops.multiply(turned, self.sine))
        return y if whole else ops.concat([y, self._columns(x, 2 * half, 2**62)], -1)

    def _columns(self, x: Node, start: int, end: int) -> Node:
        return self.ops.slice(x, self._ints(start), self._ints(end), self._ints(1), self._ints(3))

    def _scaled(self, x: Node, scale: float) -> Node:
        return x if scale == 1 else self.ops.multiply(x, self._float(scale))

    def _cached(self, x: Node, name: str) -> Node:
        """Append x to the keys or values of earlier calls, stored in the variable `name`; return them all."""
        import openvino as ov
        from openvino import opset6
        from openvino.op.util import Variable, VariableInfo

        ops, shape = self.ops, self.shape
        info = VariableInfo()
        info.data_shape = ov.PartialShape([-1, shape.key_heads, -1, shape.head_width])
        info.data_type, info.variable_id = ov.Type.f32, name
        variable = Variable(info)
        empty = ops.concat([self.batch, self._ints(shape.key_heads, 0, shape.head_width)], 0)
        past = opset6.read_value(ops.broadcast(self._float(0), empty), variable)
        both = ops.concat([ops.gather(past, self.inputs["beam_idx"], self._int(0)), x], -2)
        self.sinks.append(opset6.assign(both, variable))
        return both

    def _repeated(self, x: Node) -> Node:
        """Repeat keys or values for each query head that shares them."""
        ops, shape = self.ops, self.shape
        times = shape.heads // shape.key_heads
        if times == 1:
            return x
        sizes = ops.shape_of(x)
        outer, inner = (ops.gather(sizes, self._ints(*axes), self._int(0)) for axes in ((0, 1), (2, 3)))
        wide = ops.broadcast(
            ops.unsqueeze(x, self._ints(2)), ops.concat([outer, self._ints(times), inner], 0), "BIDIRECTIONAL"
        )
        return ops.reshape(wide, self._ints(0, shape.heads, -1, shape.head_width), True)

    def _ints(self, *values: int) -> Node:
        return self._constant(np.array(values, np.int64))

    def _int(self, value: int) -> Node:
        return self._constant(np.int64(value))

    def _float(self, value: float) -> Node:
        return self._constant(np.float32(value))

    def _constant(self, value: Any) -> Node:
        """Return a small constant, one node per value: compile time grows with the number of nodes."""
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            self._constants[key] = self.ops.constant(value)
        return self._constants[key]


def rows_of(shape: Architecture, weights: Weights, name: str) -> tuple[Affine, NDArray[np.float32] | None]:
    """Return a matrix and its bias, the rows of queries and keys paired as first half and second half."""
    found = weights.matrix(name)
    bias = weights.vector(f"{name}.bias") if weights.has(f"{name}.bias") else None
    heads = {"attn_q": shape.heads, "attn_k": shape.key_heads}.get(name.rpartition(".")[2])
    if heads is None or not shape.interleaved:
        return found, bias
    offset = None if found.offset is None else _halves(found.offset, heads)
    codes, scale = _halves(found.codes, heads), _halves(found.scale, heads)
    reordered = replace(found, codes=codes, scale=scale, offset=offset)
    return reordered, None if bias is None else _halves(bias, heads)


def form_of(weights: Affine) -> tuple[bool, bool, int]:
    """Return what matrices must share to be stacked."""
    return weights.bits == 4, weights.offset is None, weights.codes.shape[-1]


def stacked(matrices: list[Affine]) -> Affine:
    """Stack several matrices of one format vertically."""
    if len(matrices) == 1:
        return matrices[0]
    offsets = [weights.offset for weights in matrices if weights.offset is not None]
    return Affine(
        matrices[0].bits,
        np.concatenate([weights.codes for weights in matrices]),
        np.concatenate([weights.scale for weights in matrices]),
        np.concatenate(offsets) if offsets else None,
    )


def _halves(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder each head's rows from pairs (0, 1), (2, 3) ... to halves: 0, 2, ... 1, 3, ..."""
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
