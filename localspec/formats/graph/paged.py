"""A stateful OpenVINO graph becomes one over a paged KV cache that the caller owns.

After it a text's keys and values are rows in blocks: a rewind is a smaller number, and one pass reads any
number of tokens behind any number of kept ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel, UnsupportedModel

ROWS = "logit_rows"  # input: which of a pass's tokens get logits, int32 [rows]


def read_paged(graph: Path, *, hidden: bool = False) -> Any:
    """Return the openvino.Model of `graph` over a paged cache, with an input ROWS before its head.

    With `hidden` it has a second output: what enters the head, of all tokens [tokens, 1, width] in float32.
    Raises BrokenModel for files that cannot be read and UnsupportedModel for a graph without attention state.
    """
    model = read_all_rows(graph)
    gather_rows(model, hidden=hidden)
    return model


def read_all_rows(graph: Path) -> Any:
    """Return what `read_paged` does, with logits after every token of a pass; raises as it does."""
    from openvino._offline_transformations import paged_attention_transformation

    model = read_stateful(graph)
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise UnsupportedModel(f"`{graph}` cannot run on a paged cache: {first_line(error)}") from None
    return model


def read_stateful(graph: Path) -> Any:
    """Return the openvino.Model of `graph`, which keeps its own state; raises as `read_paged` does."""
    import openvino as ov

    try:
        model = ov.Core().read_model(graph)
    except RuntimeError as error:
        raise BrokenModel(f"`{graph}` cannot be read: {first_line(error)}", "Download the model again") from None
    if not model.get_sinks():
        raise UnsupportedModel(f"`{graph}` keeps no state", "Export it with a key-value cache")
    return model


def gather_rows(model: Any, *, hidden: bool = False) -> None:
    """Let the head see the tokens in ROWS alone: a prompt of 500 tokens needs no 500 x vocab logits."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops

    rows = ops.parameter(ov.PartialShape([-1]), ov.Type.i32, name=ROWS)
    rows.output(0).get_tensor().set_names({ROWS})
    entering = _head(model).input_value(0)
    readers = list(entering.get_target_inputs())
    chosen = ops.gather(entering, rows, ops.constant(np.int32(0)))
    for reader in readers:
        reader.replace_source_output(chosen.output(0))
    model.add_parameters([rows])
    if hidden:
        model.add_results([ops.result(ops.convert(entering, "f32"))])
    model.validate_nodes_and_infer_types()


def _head(model: Any) -> Any:
    """Return the last product with weights before the logits."""
    node = model.output("logits").get_node()
    while node.get_type_name() != "MatMul" or _constant(node.input_value(0).get_node()):
        node = node.input_value(0).get_node()
    return node


def _constant(node: Any) -> bool:
    return bool(node.get_type_name() == "Constant")


def first_line(error: BaseException) -> str:
    """Return what an OpenVINO error says, without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return (telling or lines or [type(error).__name__])[-1]
