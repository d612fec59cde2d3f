"""A graph is cut between two of its layers, where nothing but the residual stream goes through.

Layers are found by the shape of the graph, not by names: between two attentions all data passes through one
node, and the last such node before an attention is what enters its layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from localspec.errors import UnsupportedModel, no_such_layer
from localspec.formats.files import read_json
from localspec.formats.gguf.file import GgufFile

ATTENTION = ("PagedAttentionExtension", "ScaledDotProductAttention")
HIDDEN = "hidden"  # input: what goes from part to part, float32 [tokens, 1, width]


def check(model: Path, layer: int) -> None:
    """Raise BadValue when a model says that it has too few layers for one to leave it after `layer` of them.

    A folder says so in its config.json, a GGUF file in its header. A model that does not say is let pass.
    """
    if model.is_file():
        layers = GgufFile.open(model).value("block_count")
    else:
        config = model / "config.json"
        found = read_json(config) if config.is_file() else {}
        layers = (found.get("text_config") or found).get("num_hidden_layers")
    if isinstance(layers, int) and layer >= layers:
        raise no_such_layer(layer, layers)


class Parts(NamedTuple):
    """Three models that are one when they run in turn; each weight is in one of them."""

    first: Any  # token ids -> what leaves the exit's layer
    rest: Any  # that -> what leaves the last layer
    head: Any  # that -> logits: the last norm and the product with the vocabulary


def split(model: Any, layer: int) -> Parts:
    """Return the parts of `model`, a paged graph with all rows, cut after `layer` layers; it is used up.

    What goes from part to part is the input HIDDEN of the later one.
    Raises BadValue when there is no such layer, UnsupportedModel when its layers cannot be told apart.
    """
    entering = residual(model)
    if not 0 < layer < len(entering) - 1:
        raise no_such_layer(layer, len(entering) - 1)
    import openvino as ov
    from openvino import opset13 as ops

    early, late = entering[layer], entering[-1]
    logits = model.output("logits").get_node()
    first, rest = ops.result(early), ops.result(late)
    into_rest, into_head = _entered(early, first), _entered(late, rest)
    return Parts(
        ov.Model([first], _parameters(first), "first"),
        ov.Model([rest], [into_rest, *_parameters(rest, into_rest)], "rest"),
        ov.Model([logits], [into_head, *_parameters(logits, into_head)], "head"),
    )


def residual(model: Any) -> list[Any]:
    """Return the outputs that enter each layer of a graph, and the one that leaves the last."""
    nodes = _between(model)
    cuts = _cuts(nodes)
    before, at = [], -1
    for node in nodes:
        at += cuts[at + 1 : at + 2] == [node]
        if node.get_type_name() in ATTENTION:
            before.append(at)
    steps = {after - earlier for earlier, after in zip(before, before[1:], strict=False)}
    if len(steps) != 1 or before[0] < 0 or before[-1] + max(steps) >= len(cuts):
        raise UnsupportedModel("The layers of this model cannot be told apart", "Run it without an exit")
    return [cuts[place].output(0) for place in (*before, before[-1] + steps.pop())]


def attentions(model: Any) -> list[Any]:
    """Return the attention of each layer, in order."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() in ATTENTION]


def _between(model: Any) -> list[Any]:
    """Return the nodes on the ways from the token ids to the logits, in order; shapes are no way."""
    nodes = [node for node in model.get_ordered_ops() if node.get_type_name() != "ShapeOf"]
    reached = {model.input("input_ids").get_node()}
    for node in nodes:
        if not reached.isdisjoint(_sources(node)):
            reached.add(node)
    needed = {model.output("logits").get_node()}
    for node in reversed(nodes):
        if node in needed:
            needed.update(_sources(node))
    return [node for node in nodes if node in reached and node in needed]


def _cuts(nodes: list[Any]) -> list[Any]:
    """Return those of `nodes`, which are in order, that all ways from the first to the last go through."""
    place = {node: at for at, node in enumerate(nodes)}
    reach = 0  # the furthest reader of what came before
    found = []
    for at, node in enumerate(nodes):
        if reach <= at:
            found.append(node)
        readers = (port.get_node() for output in node.outputs() for port in output.get_target_inputs())
        reach = max([reach, *(place.get(reader, 0) for reader in readers)])
    return found


def _sources(node: Any) -> list[Any]:
    return [port.get_source_output().get_node() for port in node.inputs()]


def _entered(output: Any, result: Any) -> Any:
    """Return a new parameter HIDDEN that all readers of `output` but `result` read in its place."""
    from openvino import opset13 as ops

    parameter = ops.parameter(output.get_partial_shape(), output.get_element_type(), name=HIDDEN)
    parameter.output(0).set_names({HIDDEN})
    for reader in output.get_target_inputs():
        if reader.get_node() != result:
            reader.replace_source_output(parameter.output(0))
    return parameter


def _parameters(result: Any, *known: Any) -> list[Any]:
    """Return the parameters that `result` depends on, but for the `known` ones."""
    seen, waiting, found = {result, *known}, [result], []
    while waiting:
        for node in _sources(waiting.pop()):
            if node not in seen:
                seen.add(node)
                waiting.append(node)
                if node.get_type_name() == "Parameter":
                    found.append(node)
    return found
