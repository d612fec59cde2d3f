"""Split a graph between two of its layers, where only the residual stream passes.

Layers are found by the structure of the graph, not by names: between two attentions all data passes through
one node, and the last such node before an attention is the input of its layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from localspec.errors import BadValue, UnsupportedModel, no_such_layer
from localspec.formats.files import read_json
from localspec.formats.gguf.file import GgufFile

ATTENTION = ("PagedAttentionExtension", "ScaledDotProductAttention")
STATES = "states"  # output: the residual stream after some layers
# Inputs of each token: an embedding, float32 [tokens, 1, width], and whether it stands in the place of the
# token's own, boolean [tokens, 1, 1].
SEEN, VISUAL = "seen", "visual"
HIDDEN = "hidden"  # input: the hidden states that go from part to part, float32 [tokens, 1, width]


def check(model: Path, layer: int) -> None:
    """Raise BadValue if a model has too few layers to exit after `layer` of them.

    The number is read from config.json or the GGUF header; a model without it passes.
    """
    if model.is_file():
        layers = GgufFile.open(model).value("block_count")
    else:
        config = model / "config.json"
        values = read_json(config) if config.is_file() else {}
        inner = values.get("text_config")
        layers = (inner if isinstance(inner, dict) else values).get("num_hidden_layers")
    if type(layers) is int and layer >= layers:
        raise no_such_layer(layer, layers)


def taps_of(text: str) -> tuple[int, ...]:
    """Return the layers that a text such as "2-14-25" lists; raises BadValue unless they ascend from 1."""
    try:
        taps = tuple(int(part) for part in text.split("-"))
    except ValueError:
        taps = ()
    if not taps or taps[0] < 1 or sorted(set(taps)) != list(taps):
        raise BadValue(f"`taps` is `{text}`", "It takes ascending numbers of layers, such as `2-14-25`")
    return taps


def expose(model: Any, taps: Sequence[int]) -> None:
    """Add an output STATES: the residual stream after each of `taps` layers, float32 [..., layers * width].

    Raises BadValue if there is no such layer, UnsupportedModel if layers cannot be told apart.
    """
    from openvino import opset13 as ops

    stream = residual(model)
    if taps[-1] >= len(stream):
        raise BadValue(f"`taps` has layer {taps[-1]}: the model has {len(stream) - 1} layers")
    states = ops.concat([ops.convert(stream[tap], "f32") for tap in taps], -1)
    states.output(0).set_names({STATES})
    model.add_results([ops.result(states)])


def open_embeddings(model: Any) -> None:
    """Add the inputs SEEN and VISUAL to a paged graph: its first layer reads embeddings in place of tokens.

    Raises UnsupportedModel if layers cannot be told apart.
    """
    import openvino as ov
    from openvino import opset13 as ops

    own = residual(model)[0]
    readers = own.get_target_inputs()
    seen = ops.parameter(own.get_partial_shape(), own.get_element_type(), name=SEEN)
    visual = ops.parameter(ov.PartialShape([-1, 1, 1]), ov.Type.boolean, name=VISUAL)
    for parameter, name in ((seen, SEEN), (visual, VISUAL)):
        parameter.output(0).set_names({name})
    chosen = ops.select(visual, seen, own)
    for reader in readers:
        reader.replace_source_output(chosen.output(0))
    model.add_parameters([seen, visual])


class Parts(NamedTuple):
    """Three models that equal the whole one when run in turn; each weight is in one of them."""

    first: Any  # token ids -> hidden states after the exit layer
    rest: Any  # those -> hidden states after the last layer
    head: Any  # those -> logits: the last norm and the product with the vocabulary


def split(model: Any, layer: int) -> Parts:
    """Split `model`, a paged graph with logits for all tokens, after `layer` layers; `model` is consumed.

    Each later part has the hidden states of the earlier one as its input HIDDEN. Raises BadValue if there is
    no such layer, UnsupportedModel if its layers cannot be told apart.
    """
    stream = residual(model)
    if not 0 < layer < len(stream) - 1:
        raise no_such_layer(layer, len(stream) - 1)
    import openvino as ov
    from openvino import opset13 as ops

    early, late = stream[layer], stream[-1]
    logits = model.output("logits").get_node()
    first, rest = ops.result(early), ops.result(late)
    into_rest, into_head = _detach(early, first), _detach(late, rest)
    return Parts(
        ov.Model([first], _parameters(first), "first"),
        ov.Model([rest], [into_rest, *_parameters(rest, into_rest)], "rest"),
        ov.Model([logits], [into_head, *_parameters(logits, into_head)], "head"),
    )


def residual(model: Any) -> list[Any]:
    """Return the input of each layer of a graph, and the output of the last."""
    nodes = _main_path(model)
    cuts = _cuts(nodes)
    before, at = [], -1
    for node in nodes:
        at += cuts[at + 1 : at + 2] == [node]
        if node.get_type_name() in ATTENTION:
            before.append(at)
    steps = {after - earlier for earlier, after in zip(before, before[1:], strict=False)}
    if len(steps) != 1 or before[0] < 0 or before[-1] + max(steps) >= len(cuts):
        raise UnsupportedModel("The layers of this model cannot be told apart", "Run it without an exit")
    return [cuts[index].output(0) for index in (*before, before[-1] + steps.pop())]


def attentions(model: Any) -> list[Any]:
    """Return the attention of each layer, in order."""
    return [node for node in model.get_ordered_ops() if node.get_type_name() in ATTENTION]


def _main_path(model: Any) -> list[Any]:
    """Return the nodes on the paths from the token ids to the logits, in order; shapes do not count."""
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
    """Return the `nodes`, which are in order, that every path from the first to the last passes."""
    index = {node: at for at, node in enumerate(nodes)}
    reach = 0  # the furthest reader of the nodes so far
    cuts = []
    for at, node in enumerate(nodes):
        if reach <= at:
            cuts.append(node)
        readers = (port.get_node() for output in node.outputs() for port in output.get_target_inputs())
        reach = max([reach, *(index.get(reader, 0) for reader in readers)])
    return cuts


def _sources(node: Any) -> list[Any]:
    return [port.get_source_output().get_node() for port in node.inputs()]


def _detach(output: Any, result: Any) -> Any:
    """Return a new parameter HIDDEN that replaces `output` for all its readers except `result`."""
    from openvino import opset13 as ops

    parameter = ops.parameter(output.get_partial_shape(), output.get_element_type(), name=HIDDEN)
    parameter.output(0).set_names({HIDDEN})
    for reader in output.get_target_inputs():
        if reader.get_node() != result:
            reader.replace_source_output(parameter.output(0))
    return parameter


def _parameters(result: Any, *known: Any) -> list[Any]:
    """Return the parameters that `result` depends on, except the `known` ones."""
    seen, waiting, parameters = {result, *known}, [result], []
    while waiting:
        for node in _sources(waiting.pop()):
            if node not in seen:
                seen.add(node)
                waiting.append(node)
                if node.get_type_name() == "Parameter":
                    parameters.append(node)
    return parameters
