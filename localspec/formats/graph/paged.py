"""Convert a stateful OpenVINO graph to one over a paged KV cache that the caller owns.

Keys and values are then rows in blocks: a rewind only lowers a number, and one pass reads any number of
tokens after any number of cached ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.graph import layer_split

ROWS = "logit_rows"  # input: the tokens of a pass that get logits, int32 [rows]


def read_paged(
    graph: Path,
    *,
    hidden: bool = False,
    trees: bool = False,
    taps: Sequence[int] = (),
    seeing: bool = False,
) -> Any:
    """Return the openvino.Model of `graph` over a paged cache, with an input ROWS before its head.

    With `trees` it has inputs `qq_bias` and `qq_bias_begins`, by which a pass reads branches. With `hidden`
    it has a second output: all tokens' hidden states before the head, [tokens, 1, width] in float32; with
    `taps` it has the residual stream after these layers. A `seeing` one also reads embeddings
    (layer_split.open_embeddings). Raises BrokenModel for files that cannot be read, UnsupportedModel for a
    graph without attention state.
    """
    model = read_all_rows(graph, trees=trees)
    if taps:
        layer_split.expose(model, taps)
    if seeing:
        layer_split.open_embeddings(model)
    gather_rows(model, hidden=hidden)
    return model


def read_all_rows(graph: Path, *, trees: bool = False) -> Any:
    """Return the graph over a paged cache, with logits for every token of a pass; raises as `read_paged`."""
    from openvino._offline_transformations import paged_attention_transformation

    model = read_stateful(graph)
    try:
        paged_attention_transformation(model, allow_qq_bias=trees)
    except RuntimeError as error:
        raise UnsupportedModel(f"`{graph}` cannot run on a paged cache: {first_line(error)}") from None
    return model


def read_stateful(graph: Path) -> Any:
    """Return the openvino.Model of `graph` with its own state; raises as `read_paged`."""
    import openvino as ov

    try:
        model = ov.Core().read_model(graph)
    except RuntimeError as error:
        what = f"`{graph}` cannot be read: {first_line(error)}"
        raise BrokenModel(what, "Download the model again") from None
    if not model.get_sinks():
        raise UnsupportedModel(f"`{graph}` has no state", "Export it with a KV cache")
    return model


def gather_rows(model: Any, *, hidden: bool = False) -> None:
    """Compute logits only for the tokens in ROWS: a prompt of 500 tokens needs no 500 x vocab logits."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops

    rows = ops.parameter(ov.PartialShape([-1]), ov.Type.i32, name=ROWS)
    rows.output(0).get_tensor().set_names({ROWS})
    hidden_states = _head(model).input_value(0)
    readers = list(hidden_states.get_target_inputs())
    chosen = ops.gather(hidden_states, rows, ops.constant(np.int32(0)))
    for reader in readers:
        reader.replace_source_output(chosen.output(0))
    model.add_parameters([rows])
    if hidden:
        model.add_results([ops.result(ops.convert(hidden_states, "f32"))])
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
    """Return the message of an OpenVINO error, without its source locations."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith(("Exception from", "Check '"))]
    return (messages or lines or [type(error).__name__])[-1]
