"""Remove layers of a stateful OpenVINO graph, or rows of its head; without torch.

Layers are found by the structure of the graph (see layer_split.py), so graphs of any exporter work. What is
left computes the same as before: the logits of the kept tokens are bit-identical.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import UnsupportedModel, no_such_layer
from localspec.formats.graph.layer_split import attentions, residual
from localspec.formats.graph.linear import four_bits

NEVER = np.float32(-65504)  # the logit of a removed token: the lowest float16, because -inf could become NaN
ELEMENTWISE = ("Add", "Subtract", "Multiply", "Divide")


def count_layers(model: Any) -> int:
    """Return the number of layers; raises UnsupportedModel if they cannot be told apart."""
    return len(residual(model)) - 1


def drop_layers(model: Any, dropped: Collection[int]) -> None:
    """Remove the layers `dropped`, counted from 0: the input of each goes to the next kept layer.

    Raises BadValue for a layer that does not exist, UnsupportedModel if layers cannot be told apart.
    """
    stream, attention = residual(model), attentions(model)
    for layer in dropped:
        if not 0 <= layer < len(attention):
            raise no_such_layer(layer, len(attention))
    nodes = {port.get_node() for port in stream}
    dead = {name for layer in dropped for name in _states(attention[layer], nodes)}
    current = stream[0]
    for layer, output in enumerate(stream[1:]):
        if layer in dropped:
            for reader in output.get_target_inputs():
                reader.replace_source_output(current)
        else:
            current = output
    _remove_variables(model, dead)
    model.validate_nodes_and_infer_types()


def show_hidden(model: Any) -> list[str]:
    """Add outputs for the input of each layer and the output of the last; return their names in order."""
    from openvino import opset13 as ops

    names = []
    for layer, port in enumerate(residual(model)):
        shown = ops.result(ops.convert(port, "f32"))
        names.append(f"hidden.{layer}")
        shown.output(0).set_names({names[-1]})
        model.add_results([shown])
    model.validate_nodes_and_infer_types()
    return names


def trim_head(model: Any, tokens: NDArray[np.int64]) -> None:
    """Reduce the head of `model` to the logits of `tokens`, ascending; all others get NEVER.

    The logits keep their width, so their readers need no change; the embedding stays complete. Raises
    UnsupportedModel for a head that is no product with one row of weights per token.
    """
    from openvino import opset13 as ops

    result = model.output("logits").get_node()
    logits = result.input_value(0)
    vocab = int(logits.get_partial_shape()[-1].get_length())
    trimmed = _trimmed(logits, vocab, tokens)
    index = np.full(vocab, len(tokens), np.int32)
    index[tokens] = np.arange(len(tokens), dtype=np.int32)
    edge = [np.zeros(3, np.int64), np.array([0, 0, 1], np.int64)]
    padded = ops.pad(trimmed, *map(ops.constant, edge), "constant", ops.constant(NEVER))
    restored = ops.gather(padded, ops.constant(index), ops.constant(np.int32(2)))
    names = logits.get_names()
    result.input(0).replace_source_output(restored.output(0))
    logits.get_tensor().set_names(set())
    restored.output(0).get_tensor().set_names(names or {"logits"})
    model.validate_nodes_and_infer_types()


def _states(attention: Any, stream: Collection[Any]) -> set[str]:
    """Return the names of the variables that hold the keys and values of an attention."""
    waiting = [attention.input_value(port).get_node() for port in (1, 2)]
    seen, names = set(stream), set()
    while waiting:
        node = waiting.pop()
        if node in seen or node.get_type_name() == "ShapeOf":
            continue
        seen.add(node)
        if node.get_type_name() == "ReadValue":
            names.add(node.get_variable_id())
        else:
            waiting += [port.get_source_output().get_node() for port in node.inputs()]
    return names


def _remove_variables(model: Any, dead: Collection[str]) -> None:
    """Remove variables; readers that took the length of the past from one take it from a kept one."""
    states = {
        node.get_variable_id(): node
        for node in model.get_ordered_ops()
        if node.get_type_name() == "ReadValue"
    }
    kept = next(node for name, node in states.items() if name not in dead)
    for sink in model.get_sinks():
        if sink.get_type_name() == "Assign" and sink.get_variable_id() in dead:
            model.remove_sink(sink)
    for name in dead & states.keys():
        for reader in states[name].output(0).get_target_inputs():
            reader.replace_source_output(kept.output(0))
    for variable in model.get_variables():
        if variable.info.variable_id in dead:
            model.remove_variable(variable)


def _trimmed(output: Any, vocab: int, tokens: NDArray[np.int64]) -> Any:
    """Return a copy of the node of `output` [batch, tokens, vocab], reduced to some tokens."""
    from openvino import opset13 as ops

    node = output.get_node()
    kind = node.get_type_name()
    if kind == "MatMul":
        flags = node.get_attributes()
        weights = node.input_value(1)
        if not flags["transpose_b"] or weights.get_partial_shape()[0].get_length() != vocab:
            raise UnsupportedModel("The head of this model has no row for each token", "Keep all tokens")
        rows = copied(weights, lambda constant: _rows(constant, vocab, tokens))
        return ops.matmul(node.input_value(0), rows, flags["transpose_a"], True)
    if kind == "Constant":
        return _columns(node, vocab, tokens)
    if kind in ("Convert", "Tanh", *ELEMENTWISE):
        inputs = [_trimmed(node.input_value(at), vocab, tokens) for at in range(len(node.inputs()))]
        return _like(node, inputs)
    raise UnsupportedModel(f"The head of this model ends in `{kind}`", "Keep all tokens")


def copied(output: Any, change: Callable[[Any], Any]) -> Any:
    """Return a copy of the weights behind `output`, each constant replaced by `change` of it."""
    node = output.get_node()
    if node.get_type_name() == "Constant":
        return change(node)
    return _like(node, [copied(port.get_source_output(), change) for port in node.inputs()])


def _like(node: Any, inputs: list[Any]) -> Any:
    """Return a node of the same kind over other inputs."""
    from openvino import opset13 as ops

    kind = node.get_type_name()
    if kind == "Convert":
        return ops.convert(inputs[0], node.get_output_element_type(0))
    if kind == "Tanh":
        return ops.tanh(inputs[0])
    if kind == "Reshape":
        return ops.reshape(*inputs, node.get_attributes().get("special_zero", False))
    if kind in ELEMENTWISE:
        return getattr(ops, kind.lower())(*inputs)
    raise UnsupportedModel(f"The weights of this model's head pass through `{kind}`", "Keep all tokens")


def _rows(constant: Any, vocab: int, tokens: NDArray[np.int64]) -> Any:
    """Return a constant of weights with the rows of `tokens` only; a shape gets the new number of rows."""
    import openvino as ov
    from openvino import opset13 as ops

    shape, kind = list(constant.get_output_shape(0)), constant.get_output_element_type(0)
    if kind == ov.Type.i64 and len(shape) == 1:
        sizes = np.array(constant.data)
        return ops.constant(np.where(sizes == vocab, len(tokens), sizes))
    if not shape or shape[0] != vocab:
        return constant
    if kind.bitwidth >= 8:
        return ops.constant(np.ascontiguousarray(constant.data[tokens]), kind)
    name = kind.get_type_name()
    if name not in ("i4", "u4"):
        raise UnsupportedModel(f"The head's weights are in `{name}`", "Keep all tokens")
    pairs = np.ascontiguousarray(constant.data).view(np.uint8).ravel()  # two codes a byte
    codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(shape)
    return four_bits(codes[tokens], name)


def _columns(constant: Any, vocab: int, tokens: NDArray[np.int64]) -> Any:
    """Return a constant that is added to or multiplied with logits, reduced to some tokens."""
    from openvino import opset13 as ops

    shape = list(constant.get_output_shape(0))
    if not shape or shape[-1] != vocab:
        return constant
    return ops.constant(np.ascontiguousarray(np.array(constant.data)[..., tokens]))
