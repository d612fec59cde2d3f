"""The graph of CAM++ (Wang et al. 2023): two seconds of a voice -> a vector whose direction is its speaker.

A front end of two-dimensional convolutions, three blocks of densely connected time-delay layers with
context-aware masks, and the mean and deviation over time, as 3D-Speaker's `CAMPPlus` has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.speech.diarization.nodes import Layers, Node

MELS, FRAMES = 80, 200  # of a voice: 10 ms a frame
BLOCKS = ((12, 1), (24, 2), (16, 2))  # layers and dilation
SIZE = 192  # of a vector


def embedding_graph(weights: Mapping[str, NDArray[Any]], path: Path) -> Any:
    """Return the openvino.Model: features [batch, 200, 80] -> vectors [batch, 192].

    Raises BrokenModel if a tensor is missing; `path` is the file to name then.
    """
    import openvino as ov

    graph = _Embedding(weights, path)
    ops = graph.ops
    features = ops.parameter(ov.PartialShape([-1, FRAMES, MELS]), ov.Type.f32, name="features")
    features.output(0).get_tensor().set_names({"features"})
    x = ops.unsqueeze(ops.transpose(features, graph.ints(0, 2, 1)), graph.ints(1))
    x = graph.front(x)
    x = graph.activated(
        graph.convolution(x, "xvector.tdnn.linear", stride=2, padding=2), "xvector.tdnn.nonlinear"
    )
    for at, (count, dilation) in enumerate(BLOCKS, 1):
        for layer in range(1, count + 1):
            x = ops.concat([x, graph.dense(x, f"xvector.block{at}.tdnnd{layer}", dilation)], 1)
        x = graph.convolution(
            graph.activated(x, f"xvector.transit{at}.nonlinear"), f"xvector.transit{at}.linear"
        )
    x = graph.convolution(
        graph.statistics(graph.activated(x, "xvector.out_nonlinear")), "xvector.dense.linear"
    )
    x = graph.batch_norm(x, "xvector.dense.nonlinear.batchnorm", affine=False)
    vectors = ops.squeeze(x, graph.ints(2))
    vectors.output(0).get_tensor().set_names({"vectors"})
    return ov.Model([ops.result(vectors)], [features], "embedding")


class _Embedding(Layers):
    """The layers that only CAM++ has."""

    def ints(self, *values: int) -> Node:
        return self.ops.constant(np.array(values, np.int64))

    def front(self, x: Node) -> Node:
        """Return x [batch, 1, mels, frames] as [batch, channels, frames]."""
        x = self._plane(x, "head", "1", act=True)
        for block in ("head.layer1.0", "head.layer1.1", "head.layer2.0", "head.layer2.1"):
            stride = 2 if block.endswith("0") else 1
            y = self._plane(x, block, "1", stride=stride, act=True)
            y = self._plane(y, block, "2")
            if stride == 2:
                x = self._shortcut(x, f"{block}.shortcut")
            x = self.ops.relu(self.ops.add(y, x))
        x = self._plane(x, "head", "2", stride=2, act=True)
        return self.ops.reshape(x, self.ints(0, -1, FRAMES), True)

    def _plane(self, x: Node, block: str, at: str, *, stride: int = 1, act: bool = False) -> Node:
        """Return a 3x3 convolution that takes each `stride`-th mel band, with its norm."""
        filters = self.ops.constant(self.weight(f"{block}.conv{at}.weight"))
        x = self.ops.convolution(x, filters, [stride, 1], [1, 1], [1, 1], [1, 1])
        x = self.batch_norm(x, f"{block}.bn{at}")
        return self.ops.relu(x) if act else x

    def _shortcut(self, x: Node, name: str) -> Node:
        filters = self.ops.constant(self.weight(f"{name}.0.weight"))
        return self.batch_norm(self.ops.convolution(x, filters, [2, 1], [0, 0], [0, 0], [1, 1]), f"{name}.1")

    def activated(self, x: Node, name: str) -> Node:
        return self.ops.relu(self.batch_norm(x, f"{name}.batchnorm"))

    def dense(self, x: Node, name: str, dilation: int) -> Node:
        """Return a time-delay layer under its mask, which follows from the mean over time.

        CAM++ adds the mean of the whole and that of each hundred frames; here these are the same hundred.
        """
        ops = self.ops
        x = self.convolution(self.activated(x, f"{name}.nonlinear1"), f"{name}.linear1")
        x = self.activated(x, f"{name}.nonlinear2")
        y = self.convolution(x, f"{name}.cam_layer.linear_local", dilation=dilation, padding=dilation)
        context = ops.multiply(ops.reduce_mean(x, self.ints(2), True), ops.constant(np.float32(2)))
        mask = ops.relu(self.convolution(context, f"{name}.cam_layer.linear1"))
        return ops.multiply(y, ops.sigmoid(self.convolution(mask, f"{name}.cam_layer.linear2")))

    def statistics(self, x: Node) -> Node:
        """Return the mean and the unbiased standard deviation over time, one after the other."""
        ops = self.ops
        mean = ops.reduce_mean(x, self.ints(2), True)
        frames = FRAMES // 2
        squares = ops.reduce_sum(
            ops.power(ops.subtract(x, mean), ops.constant(np.float32(2))), self.ints(2), True
        )
        deviation = ops.sqrt(ops.multiply(squares, ops.constant(np.float32(1 / (frames - 1)))))
        return ops.concat([mean, deviation], 1)
