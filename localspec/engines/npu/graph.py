"""Requirements of Intel's NPU on a graph: a mask within float16, and weights with one scale per row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from localspec.formats.graph.paged import read_stateful

# The lowest finite float16: softmax of a padded row of -inf is undefined and would spoil the cache.
HIDDEN = -65504.0
PACKED = ("i4", "u4", "i8", "u8", "nf4")
BETWEEN = ("Convert", "Multiply", "Subtract", "Reshape", "Transpose")  # from a weight's codes to its MatMul


def read_static(graph: Path) -> Any:
    """Return the openvino.Model of `graph` as the NPU plug-in requires it.

    Raises BrokenModel for files that cannot be read and UnsupportedModel for a graph without a cache.
    """
    model = read_stateful(graph)
    soften_mask(model)
    return model


def soften_mask(model: Any) -> None:
    """Replace scalars below HIDDEN by it: in float16 they would be -inf."""
    from openvino import opset13 as ops

    for node in model.get_ops():
        if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() != "f32":
            continue
        if np.prod(node.get_output_shape(0)) == 1 and node.data.item() < HIDDEN:
            hidden = ops.constant(np.full(list(node.get_output_shape(0)), HIDDEN, np.float32))
            for reader in list(node.output(0).get_target_inputs()):
                reader.replace_source_output(hidden.output(0))


def group_wise(model: Any) -> str | None:
    """Return the name of a weight with several scales per row, None without one."""
    for node in model.get_ops():
        if node.get_type_name() != "MatMul":
            continue
        codes = node.input_value(1).get_node()
        while codes.get_type_name() in BETWEEN:
            codes = codes.input_value(0).get_node()
        if codes.get_type_name() == "Constant" and codes.get_element_type().get_type_name() in PACKED:
            shape = list(codes.get_output_shape(0))
            if len(shape) == 3 and shape[1] > 1:
                return str(codes.get_friendly_name())
    return None
