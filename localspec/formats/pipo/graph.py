"""The OpenVINO graphs of PIPO: the target's layers over pairs, and the head that tells second tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.formats.gguf.quants import Affine
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.builder import Graph, rows_of
from localspec.formats.graph.ir import save, tensors_of
from localspec.formats.graph.linear import Linear, Node
from localspec.formats.graph.weights import Weights, eight_bits, sixteen_bits
from localspec.formats.heads.graph import HeadGraph
from localspec.formats.heads.layout import Head
from localspec.formats.huggingface.adapters import adapter_of
from localspec.formats.model_file import open_weights
from localspec.formats.pipo.layout import HEAD, LM_HEAD, StoredPairs

SECOND = "second_ids"  # input of the layers' graph: the second tokens of pairs, PAD where there is none
GRAPH, HEAD_GRAPH = "openvino_model", "openvino_head"  # names of the files


class PairWeights:
    """A target's tensors with the adapters of PIPO added; matrices of layers in 8 bits, or in float16.

    The rows of queries and keys are ordered as transformers does, as those of the adapters are.
    """

    def __init__(self, shape: Architecture, target: Weights, pairs: StoredPairs, *, plain: bool) -> None:
        self._shape, self._target, self._pairs = shape, target, pairs
        self._converted = sixteen_bits if plain else eight_bits

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name."""
        return self._target.has(name)

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias."""
        if name.endswith(".bias"):
            bias = rows_of(self._shape, self._target, name.removesuffix(".bias"))[1]
            assert bias is not None
            return bias
        return self._target.vector(name)

    def matrix(self, name: str) -> Affine:
        """Return a matrix; raises UnsupportedModel for one of a layer that has no adapter."""
        if not name.startswith("blk."):
            return self._target.matrix(name)
        down, up = adapter_of(self._pairs.tensors, name)
        return self.converted(rows_of(self._shape, self._target, name)[0].values() + up @ down)

    def table(self, name: str) -> Affine:
        """Return a matrix without offsets, for a lookup."""
        return self._target.table(name)

    def converted(self, values: NDArray[np.float32]) -> Affine:
        """Return a matrix [rows, columns] as the graph stores it."""
        return self._converted(lambda rows: values[rows], len(values))


class PairGraph(Graph):
    """Builds the graph of a target's layers over pairs: input_ids are first tokens, SECOND second ones."""

    def __init__(self, shape: Architecture, weights: PairWeights, pairs: StoredPairs) -> None:
        super().__init__(replace(shape, interleaved=False), weights)
        self._pairs = pairs
        self.inputs[SECOND] = self._input(SECOND, "i64", 2)

    def _embedded(self, table: Node) -> Node:
        """Return the latents z = W2 silu(W1 [e1; e2]) [batch, pairs, width]."""
        ops, tensors = self.ops, self._pairs.tensors
        first, second = (self.inputs[name] for name in ("input_ids", SECOND))
        missing = ops.unsqueeze(ops.less(second, self._int(0)), self._ints(2))
        axis = ops.constant(np.int32(0))
        known = ops.gather(table, ops.maximum(second, self._int(0)), axis)
        pad = ops.constant(tensors["pad"].reshape(1, 1, -1))
        pair = ops.concat([ops.gather(table, first, axis), ops.select(missing, pad, known)], -1)
        inner = ops.swish(self.linear.product(pair, _halves(tensors["compressor.first"])))
        return self.linear.product(inner, _halves(tensors["compressor.second"]))


class PairHeadGraph(HeadGraph):
    """Builds the graph of the head, which reads the first token of each pair and the state before it."""

    def __init__(self, pairs: StoredPairs, head: Head, table: Affine, *, plain: bool) -> None:
        super().__init__(head, Linear().table(table), plain=plain)
        self._pairs = pairs

    def _read(self, embedded: Node) -> Node:
        """Return fc [norm(embedding); norm(state)] [batch, pairs, width]."""
        tensors = self._pairs.tensors
        parts = (embedded, "norms.token"), (super()._read(embedded), "norms.state")
        both = [self._normed(part, tensors[name]) for part, name in parts]
        return self.linear.product(self.ops.concat(both, -1), _halves(tensors[f"{HEAD}fc.weight"]))


def write(
    pairs: StoredPairs,
    target: Path,
    into: Path,
    on_layer: Callable[[], None] = lambda: None,
    *,
    plain: bool = False,
) -> None:
    """Write both graphs into the folder `into`, with the weights of `target`, a GGUF file or a folder.

    Raises UnsupportedModel for a target that becomes no graph, BrokenModel for damaged files.
    """
    shape, own = tensors_of(open_weights(target), offsets=False, plain=plain)
    weights = PairWeights(shape, own, pairs, plain=plain)
    save(PairGraph(shape, weights, pairs).model(on_layer), into, GRAPH)
    table = own.table("token_embd")
    tensors = {
        name.removeprefix(HEAD): value for name, value in pairs.tensors.items() if name.startswith(HEAD)
    }
    tensors[LM_HEAD] = (table if shape.tied else own.matrix("output")).values()
    head = Head(pairs.shape.head, tensors, np.arange(pairs.shape.head.vocab))
    save(PairHeadGraph(pairs, head, table, plain=plain).model(), into, HEAD_GRAPH)


def _halves(values: NDArray[np.float32]) -> Affine:
    return sixteen_bits(lambda rows: values[rows], len(values))
