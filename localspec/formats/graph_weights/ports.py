"""Small questions about the nodes of an OpenVINO graph: constants, sources, pieces of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import UnsupportedModel, printable

Port = Any  # openvino.Output; its stubs lack most methods
Node = Any

FLOATS = ("f32", "f16", "bf16")
SHAPED = ("Reshape", "Unsqueeze", "Squeeze", "Broadcast", "Transpose")  # change no number
OTHER = "Run it with `--engine openvino`, or give the torch engine a GGUF file or safetensors of the model"


def kind(port: Port) -> str:
    """Return the type of the operation that makes what a port has, such as `MatMul`."""
    return str(port.get_node().get_type_name())


def name(port: Port) -> str:
    """Return the friendly name of the node of a port."""
    return printable(str(port.get_node().get_friendly_name()))


def source(port: Port, at: int) -> Port:
    """Return what an operation reads as its input `at`, seen through conversions between types."""
    return through(port.get_node().input_value(at))


def through(port: Port, *kinds: str) -> Port:
    """Return what a port has before conversions, and before operations of these `kinds`."""
    while kind(port) in ("Convert", *kinds):
        port = port.get_node().input_value(0)
    return port


def both(port: Port) -> tuple[tuple[Port, Port], tuple[Port, Port]]:
    """Return the two operands of an operation, in both orders."""
    one, other = source(port, 0), source(port, 1)
    return (one, other), (other, one)


def same(one: Port, other: Port) -> bool:
    """Return whether two ports are the same output of the same node."""
    return bool(one.get_node() == other.get_node() and one.get_index() == other.get_index())


def constant(port: Port) -> Node | None:
    """Return the constant that a port has, seen through conversions; None for what is computed."""
    port = through(port)
    return port.get_node() if kind(port) == "Constant" else None


def element(node: Node) -> str:
    """Return the type of a constant's numbers, such as `u4`."""
    return str(node.get_output_element_type(0).get_type_name())


def shape(node: Node) -> tuple[int, ...]:
    """Return the shape of a constant."""
    return tuple(node.get_output_shape(0))


def floats(node: Node) -> NDArray[np.float32]:
    """Return a copy of a constant in float32, in its shape; raises UnsupportedModel for whole numbers.

    OpenVINO's own view of it would keep the file mapped, and end the process if the file were cut.
    """
    if element(node) not in FLOATS:
        raise UnsupportedModel(f"The constant `{printable(node.get_friendly_name())}` has no floats", OTHER)
    return np.array(node.get_data(dtype=np.float32)).reshape(shape(node))


def number(port: Port) -> float | None:
    """Return the only number of a constant in floats; None for another one, and for what is computed."""
    found = constant(port)
    if found is None or int(np.prod(shape(found))) != 1:
        return None
    return float(np.asarray(found.data).reshape(-1)[0]) if element(found) != "bf16" else float(floats(found))


def whole_numbers(port: Port) -> list[int] | None:
    """Return the numbers of a constant in i32 or i64, None for anything else."""
    found = constant(port)
    if found is None or element(found) not in ("i32", "i64"):
        return None
    return [int(value) for value in np.asarray(found.data).reshape(-1)]


def piece(port: Port) -> tuple[Port, int, int] | None:
    """Return what a port is a piece of along the last axis, with its first place and its length.

    None if it is none. The whole counts as a piece if it is sliced.
    """
    node, operation = port.get_node(), kind(port)
    if operation not in ("VariadicSplit", "Split", "Slice"):
        return None
    data = source(port, 0)
    rank = len(data.get_partial_shape())
    last = data.get_partial_shape()[rank - 1]
    if not last.is_static:
        return None
    size = last.get_length()
    if operation == "Slice":
        if len(node.inputs()) < 5:
            return None
        start, stop, step, axes = (whole_numbers(node.input_value(at)) for at in range(1, 5))
        if start is None or stop is None or step != [1] or axes not in ([-1], [rank - 1]):
            return None
        first, last, _ = slice(start[0], stop[0]).indices(size)
        return (data, first, last - first) if first < last else None
    axis = whole_numbers(node.input_value(1))
    if axis not in ([-1], [rank - 1]):
        return None
    lengths = [output.get_partial_shape()[rank - 1].get_length() for output in node.outputs()]
    at = port.get_index()
    return data, sum(lengths[:at]), lengths[at]
