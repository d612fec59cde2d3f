"""A stateful OpenVINO graph loses layers, or rows of its head that need not be guessed; without torch.

Layers are found by the shape of the graph (see split.py), so graphs of any exporter will do. What is left
computes what it did: the rows of the tokens that are kept are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import UnsupportedModel, no_such_layer
from localspec.formats.graph.layer_split import attentions, residual
from localspec.formats.graph.linear import four_bits

NEVER = np.float32(
    -65504
)  # the logit of a token that is never guessed: float16's least, as infinities spread
ELEMENTWISE = ("Add", "Subtract", "Multiply", "Divide")


def layers_of(model: Any) -> int:
    """Return how many layers a graph has; raises UnsupportedModel when they cannot be told apart."""
    return len(residual(model)) - 1


def drop_layers(model: Any, dropped: Collection[int]) -> None:
    """Take the layers `dropped`, from 0, out of `model`: what enters one goes on to the next that is kept.

    Raises BadValue for a layer that is not there, UnsupportedModel when layers cannot be told apart.
    """
    entering, found = residual(model), attentions(model)
    for layer in dropped:
        if not 0 <= layer < len(found):
            raise no_such_layer(layer, len(found))
    stream = {port.get_node() for port in entering}
    dead = {name for layer in dropped for name in _states(found[layer], stream)}
    passing = entering[0]
    for layer, leaving in enumerate(entering[1:]):
        if layer in dropped:
            for reader in leaving.get_target_inputs():
                reader.replace_source_output(passing)
        else:
            passing = leaving
    _forget(model, dead)
    model.validate_nodes_and_infer_types()


def show_hidden(model: Any) -> list[str]:
    """Add an output for what enters each layer and leaves the last, and return their names in order."""
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
    """Let the head of `model` compute the logits of `tokens` alone, ascending; all others get NEVER.

    The logits keep their width, so that nothing that reads them needs to know; the embedding stays whole.
    Raises UnsupportedModel for a head that is no product with weights by row.
    """
    from openvino import opset13 as ops

    result = model.output("logits").get_node()
    logits = result.input_value(0)
    vocab = int(logits.get_partial_shape()[-1].get_length())
    trimmed = _trimmed(logits, vocab, tokens)
    place = np.full(vocab, len(tokens), np.int32)
    place[tokens] = np.arange(len(tokens), dtype=np.int32)
    edge = [np.zeros(3, np.int64), np.array([0, 0, 1], np.int64)]
    padded = ops.pad(trimmed, *map(ops.constant, edge), "constant", ops.constant(NEVER))
    whole = ops.gather(padded, ops.constant(place), ops.constant(np.int32(2)))
    names = logits.get_names()
    result.input(0).replace_source_output(whole.output(0))
    logits.get_tensor().set_names(set())
    whole.output(0).get_tensor().set_names(names or {"logits"})
    model.validate_nodes_and_infer_types()


def _states(attention: Any, stream: Collection[Any]) -> set[str]:
    """Return the names of the variables that hold the keys and values of an attention."""
    waiting = [attention.input_value(place).get_node() for place in (1, 2)]
    seen, found = set(stream), set()
    while waiting:
        node = waiting.pop()
        if node in seen or node.get_type_name() == "ShapeOf":
            continue
        seen.add(node)
        if node.get_type_name() == "ReadValue":
            found.add(node.get_variable_id())
        else:
            waiting += [port.get_source_output().get_node() for port in node.inputs()]
    return found


def _forget(model: Any, dead: Collection[str]) -> None:
    """Take variables out of a model; who asked one for the length of the past asks one that is kept."""
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
    """Return what makes `output` [batch, tokens, vocab], for some tokens alone."""
    from openvino import opset13 as ops

    node = output.get_node()
    kind = node.get_type_name()
    if kind == "MatMul":
        flags = node.get_attributes()
        weights = node.input_value(1)
        if not flags["transpose_b"] or weights.get_partial_shape()[0].get_length() != vocab:
            raise UnsupportedModel("The head of this model has no row for each token", "Keep all tokens")
        rows = _copied(weights, lambda constant: _rows(constant, vocab, tokens))
        return ops.matmul(node.input_value(0), rows, flags["transpose_a"], True)
    if kind == "Constant":
        return _columns(node, vocab, tokens)
    if kind in ("Convert", "Tanh", *ELEMENTWISE):
        inputs = [_trimmed(node.input_value(at), vocab, tokens) for at in range(len(node.inputs()))]
        return _like(node, inputs)
    raise UnsupportedModel(f"The head of this model ends in `{kind}`", "Keep all tokens")


def _copied(output: Any, of: Callable[[Any], Any]) -> Any:
    """Return a copy of the weights behind `output`, each constant replaced by what `of` makes of it."""
    node = output.get_node()
    if node.get_type_name() == "Constant":
        return of(node)
    return _like(node, [_copied(port.get_source_output(), of) for port in node.inputs()])


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
    raise UnsupportedModel(f"The weights of the head go through `{kind}`", "Keep all tokens")


def _rows(constant: Any, vocab: int, tokens: NDArray[np.int64]) -> Any:
    """Return a constant of weights with the rows of `tokens`; a shape that counts the rows counts fewer."""
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
    """Return a constant that is added or multiplied to logits, for some tokens."""
    from openvino import opset13 as ops

    shape = list(constant.get_output_shape(0))
    if not shape or shape[-1] != vocab:
        return constant
    return ops.constant(np.ascontiguousarray(np.array(constant.data)[..., tokens]))
