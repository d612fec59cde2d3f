"""The layers of the diarization models as OpenVINO nodes, with the weights of PyTorch checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel

Node = Any  # openvino.Node; its stubs lack the operators
EPSILON = 1e-5  # PyTorch's, in norms
LEAK = 0.01  # PyTorch's, in leaky ReLU


class Layers:
    """Makes layers by the names that a checkpoint has for their weights; `[batch, channels, frames]` each."""

    def __init__(self, weights: Mapping[str, NDArray[Any]], path: Path) -> None:
        from openvino import opset13 as ops

        self.ops: Any = ops
        self._weights = weights
        self._path = path

    def weight(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Return a tensor in float32; raises BrokenModel if it is missing, or not of the given shape."""
        found = self._weights.get(name)
        if found is None or (shape and found.shape != shape):
            raise BrokenModel(
                f"`{self._path}` lacks the tensor `{name}` that this model has", "Download it again"
            )
        return found.astype(np.float32)

    def convolution(
        self, x: Node, name: str, *, stride: int = 1, dilation: int = 1, padding: int = 0
    ) -> Node:
        """Return a one-dimensional convolution, with its bias if it has one."""
        y = self.filtered(x, self.weight(f"{name}.weight"), stride=stride, dilation=dilation, padding=padding)
        if f"{name}.bias" in self._weights:
            y = self.ops.add(y, self.ops.constant(self.weight(f"{name}.bias").reshape(1, -1, 1)))
        return y

    def filtered(
        self, x: Node, filters: NDArray[np.float32], *, stride: int = 1, dilation: int = 1, padding: int = 0
    ) -> Node:
        """Return x convolved with `filters` [out, in, width]."""
        return self.ops.convolution(x, self.ops.constant(filters), [stride], [padding], [padding], [dilation])

    def batch_norm(self, x: Node, name: str, *, affine: bool = True) -> Node:
        """Return x normed as in training, scaled and shifted (Ioffe and Szegedy 2015)."""
        mean, variance = (self.weight(f"{name}.running_{kind}") for kind in ("mean", "var"))
        scale = 1 / np.sqrt(variance + EPSILON)
        if affine:
            scale = scale * self.weight(f"{name}.weight")
        shift = (self.weight(f"{name}.bias") if affine else 0) - mean * scale
        shape = (1, -1) + (1,) * (len(x.get_output_partial_shape(0)) - 2)
        y = self.ops.multiply(x, self.ops.constant(scale.astype(np.float32).reshape(shape)))
        return self.ops.add(y, self.ops.constant(shift.astype(np.float32).reshape(shape)))

    def instance_norm(self, x: Node, name: str) -> Node:
        """Return each channel normed over its frames (Ulyanov et al. 2016), with a scale and a shift."""
        ops = self.ops
        normed = ops.mvn(x, ops.constant(np.array([2], np.int64)), True, EPSILON, "inside_sqrt")
        scale, shift = (self.weight(f"{name}.{kind}").reshape(1, -1, 1) for kind in ("weight", "bias"))
        return ops.add(ops.multiply(normed, ops.constant(scale)), ops.constant(shift))

    def leaky(self, x: Node) -> Node:
        """Return x where it is positive, else a hundredth of it."""
        return self.ops.prelu(x, self.ops.constant(np.array([LEAK], np.float32)))

    def pooled(self, x: Node, width: int) -> Node:
        """Return the maximum of each `width` frames."""
        return self.ops.max_pool(x, [width], [1], [0], [0], [width]).output(0)

    def product(self, x: Node, name: str) -> Node:
        """Return a linear layer over the last axis."""
        y = self.ops.matmul(x, self.ops.constant(self.weight(f"{name}.weight")), False, True)
        return self.ops.add(y, self.ops.constant(self.weight(f"{name}.bias")))

    def lstm(self, x: Node, name: str, layer: int, batch: Node, frames: int) -> Node:
        """Return a bidirectional LSTM layer of x [batch, frames, width], both directions side by side.

        `batch` is a vector with the batch size.
        """
        ops = self.ops
        suffixes = (f"l{layer}", f"l{layer}_reverse")
        sums = [
            self.weight(f"{name}.bias_ih_{end}") + self.weight(f"{name}.bias_hh_{end}") for end in suffixes
        ]
        inputs, recurrent, bias = (
            ops.constant(np.stack([_gates(part) for part in parts]))
            for parts in (
                [self.weight(f"{name}.weight_ih_{end}") for end in suffixes],
                [self.weight(f"{name}.weight_hh_{end}") for end in suffixes],
                sums,
            )
        )
        hidden = len(sums[0]) // 4
        zero = ops.constant(np.float32(0))
        start = ops.broadcast(zero, ops.concat([batch, ops.constant(np.array([2, hidden], np.int64))], 0))
        lengths = ops.broadcast(ops.constant(np.int64(frames)), batch)
        cells = ops.lstm_sequence(x, start, start, lengths, inputs, recurrent, bias, hidden, "bidirectional")
        both = ops.transpose(cells.output(0), ops.constant(np.array([0, 2, 1, 3], np.int64)))
        return ops.reshape(both, ops.constant(np.array([0, 0, 2 * hidden], np.int64)), True)


def _gates(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Reorder the gates of an LSTM from PyTorch's input, forget, cell, output: OpenVINO has forget first."""
    entry, forget, cell, output = np.split(rows, 4)
    return np.concatenate([forget, entry, cell, output])
