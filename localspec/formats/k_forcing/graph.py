"""The OpenVINO graph of a target whose passes read hints of K-Forcing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.formats.gguf.quants import Affine
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.builder import Graph
from localspec.formats.graph.ir import save, tensors_of
from localspec.formats.graph.linear import Node
from localspec.formats.graph.weights import Weights, sixteen_bits
from localspec.formats.huggingface.adapters import adapter_of
from localspec.formats.k_forcing.layout import OCTAVES, WARMTHS, StoredHints
from localspec.formats.model_file import open_weights

# Inputs of each token: the features of its noise, float32 [tokens, 1, FEATURES], and which hint it is, from 0
# on, int64 [tokens, 1], or -1 for a token of the text.
NOISE, PLACES = "noise", "hint_places"
GRAPH = "openvino_model"  # name of the files


class HintGraph(Graph):
    """Builds the graph of a target in which the adapters of hints reach their rows alone.

    All rows are multiplied by the adapters, and those of the text by zero: they are the target's own.
    """

    def __init__(self, shape: Architecture, weights: Weights, hints: StoredHints) -> None:
        super().__init__(shape, weights)
        self._tensors = hints.tensors
        self.inputs[NOISE] = self._input(NOISE, "f32", 3)
        self.inputs[PLACES] = self._input(PLACES, "i64", 2)

    def _embedded(self, table: Node) -> Node:
        """Return the embedding of tokens, and what the noise encoder says of hints."""
        ops, tensors, axis = self.ops, self._tensors, self.ops.constant(np.int32(0))
        places = self.inputs[PLACES]
        hinted = ops.greater_equal(ops.unsqueeze(places, self._ints(2)), self._int(0))
        self._hinted = ops.convert(hinted, "f32")
        found = self.linear.product(self.inputs[NOISE], _halves(tensors["encoder.first"]))
        inner = ops.swish(self.linear.product(found, _halves(tensors["encoder.inner"])))
        outer = self.linear.product(inner, _halves(tensors["encoder.outer"]))
        begun = ops.gather(ops.constant(tensors["places"]), ops.maximum(places, self._int(0)), axis)
        hints = ops.add(ops.add(begun, found), outer)
        return ops.select(hinted, hints, super()._embedded(table))

    def _products(self, x: Node, name: str, *parts: str) -> list[Node]:
        """Return x times each matrix, with the adapter added in rows of hints."""
        adapters = [adapter_of(self._tensors, f"{name}{part}") for part in parts]
        downs = self.linear.product(x, _halves(np.concatenate([down for down, _ in adapters])))
        split = self.ops.split(self.ops.multiply(downs, self._hinted), self._int(-1), len(parts))
        return [
            self.ops.add(own, self.linear.product(split.output(at), _halves(up)))
            for at, (own, (_, up)) in enumerate(
                zip(super()._products(x, name, *parts), adapters, strict=True)
            )
        ]


def write(
    hints: StoredHints,
    target: Path,
    into: Path,
    on_layer: Callable[[], None] = lambda: None,
    *,
    plain: bool = False,
) -> None:
    """Write the graph into the folder `into`, with the weights of `target`, a GGUF file or a folder.

    Raises UnsupportedModel for a target that becomes no graph, BrokenModel for damaged files.
    """
    shape, weights = tensors_of(open_weights(target), plain=plain)
    save(HintGraph(shape, weights, hints).model(on_layer), into, GRAPH)


def features(noise: NDArray[np.float64], temperature: float) -> NDArray[np.float32]:
    """Return sinusoids [hints, FEATURES] of `noise` [hints] and the temperature, computed in float64."""
    quiet = noise if temperature > 0 else np.zeros_like(noise)
    found: list[NDArray[np.float64]] = []
    for value, count in ((quiet, OCTAVES), (np.full_like(noise, temperature / 4), WARMTHS)):
        angles = 2 * np.pi * value[:, None] * 2.0 ** np.arange(count)
        found += [np.sin(angles), np.cos(angles)]
    return np.concatenate(found, -1).astype(np.float32)


def _halves(values: NDArray[np.float32]) -> Affine:
    return sixteen_bits(lambda rows: values[rows], len(values))
