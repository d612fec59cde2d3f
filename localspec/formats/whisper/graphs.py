"""Build Whisper (Radford et al. 2022) as three OpenVINO graphs.

The encoder turns features [1, mels, 2 * frames] into hidden states [1, frames, width], for any number of
frames up to that of 30 seconds. The cross graph turns those into the values [1, heads, frames, head width]
and keys [1, heads, head width, frames] of each decoder layer, keys divided by the square root of the head
width: OpenVINO would transpose and divide them in each pass. The decoder is a stateful graph like a text
model's, with these keys and values as further inputs: `openvino_model.xml`, so an engine runs it as any
decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.builder import Graph
from localspec.formats.graph.ir import Steps, save
from localspec.formats.graph.linear import Linear, Node
from localspec.formats.graph.paged import first_line
from localspec.formats.graph.weights import eight_bits, sixteen_bits

ENCODER, CROSS = "openvino_encoder_model", "openvino_cross_model"
SIZES = (  # the keys of a config.json, in the order of Shape
    *("d_model", "decoder_attention_heads", "encoder_layers", "decoder_layers", "num_mel_bins"),
    *("max_source_positions", "max_target_positions"),
)
EPSILON = 1e-5  # of all norms
Array = NDArray[np.float32]


class Tensors(Protocol):
    """Whisper's tensors by Hugging Face's names."""

    def array(self, name: str) -> Array:
        """Return a tensor in float32; raises BrokenModel if it is missing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Whisper model; `frames` are those of the encoder's output for 30 seconds."""

    width: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    mels: int
    frames: int
    context: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape:
        """Read the sizes from a config.json; raises BrokenModel for one without them."""
        values = [config.get(key) for key in SIZES]
        for key, value in zip(SIZES, values, strict=True):
            if type(value) is not int or not 0 < value < 100_000:
                raise BrokenModel(f"`{key}` of the model's config.json is {value!r}", "Download it again")
        if config.get("encoder_attention_heads") != config["decoder_attention_heads"]:
            raise BrokenModel("The encoder and the decoder of the model have different heads", None)
        return cls(*values)  # type: ignore[arg-type]

    @property
    def head_width(self) -> int:
        """Columns of a head."""
        return self.width // self.heads


class Layers:
    """Nodes that the encoder and the decoder share."""

    def __init__(self, shape: Shape, tensors: Tensors, bits: int) -> None:
        from openvino import opset13 as ops

        self.shape, self.tensors, self.ops = shape, tensors, ops
        self.linear = Linear()
        self._form = eight_bits if bits == 8 else sixteen_bits

    def norm(self, x: Node, name: str) -> Node:
        """Return (x - mean) / sqrt(variance + EPSILON) * weight + bias (Ba et al. 2016)."""
        ops = self.ops
        unit = ops.mvn(x, self.ints(-1), True, EPSILON, "INSIDE_SQRT")
        weight, bias = (self.tensors.array(f"{name}.{part}").reshape(1, 1, -1) for part in ("weight", "bias"))
        return ops.add(ops.multiply(unit, ops.constant(weight)), ops.constant(bias))

    def product(self, x: Node, *names: str) -> list[Node]:
        """Return x times each of several matrices plus their biases, computed by one product and a split."""
        arrays = [self.tensors.array(f"{name}.weight") for name in names]
        rows = np.concatenate(arrays)
        biases = [
            np.zeros(len(array), np.float32)
            if name.endswith("k_proj")
            else self.tensors.array(f"{name}.bias")
            for name, array in zip(names, arrays, strict=True)
        ]
        y = self.linear.product(x, self.weights(rows), np.concatenate(biases))
        if len(names) == 1:
            return [y]
        sizes = self.ints(*(len(array) for array in arrays))
        split = self.ops.variadic_split(y, self.ops.constant(np.int64(-1)), sizes)
        return [split.output(at) for at in range(len(names))]

    def weights(self, rows: Array) -> Any:
        """Return a matrix in the form of its graph."""
        return self._form(lambda part: rows[part], len(rows))

    def ints(self, *values: int) -> Node:
        """Return a constant of whole numbers."""
        return self.ops.constant(np.array(values, np.int64))

    def heads(self, x: Node) -> Node:
        """Return x [1, heads, tokens, head width] of [1, tokens, width] or [tokens, 1, width]."""
        ops, shape = self.ops, self.shape
        split = self.ints(1, -1, shape.heads, shape.head_width)
        return ops.transpose(ops.reshape(x, split, False), self.ints(0, 2, 1, 3))

    def joined(self, x: Node) -> Node:
        """Return x [1, tokens, width] of [1, heads, tokens, head width]."""
        ops = self.ops
        rows = ops.transpose(x, self.ints(0, 2, 1, 3))
        return ops.reshape(rows, self.ints(1, -1, self.shape.width), False)

    def feed_forward(self, x: Node, name: str) -> Node:
        """Return x plus the feed-forward network of its norm."""
        (inner,) = self.product(self.norm(x, f"{name}.final_layer_norm"), f"{name}.fc1")
        (outer,) = self.product(self.ops.gelu(inner, "erf"), f"{name}.fc2")
        return self.ops.add(x, outer)


def encoder(shape: Shape, tensors: Tensors, bits: int) -> Any:
    """Return the openvino.Model of the encoder."""
    import openvino as ov

    layers = Layers(shape, tensors, bits)
    ops = layers.ops
    features = _input("features", [1, shape.mels, -1])
    x = features
    for number, stride in ((1, 1), (2, 2)):
        name = f"model.encoder.conv{number}"
        kernel = ops.convert(ops.constant(tensors.array(f"{name}.weight").astype(np.float16)), "f32")
        x = ops.convolution(x, kernel, [stride], [1], [1], [1])
        x = ops.gelu(ops.add(x, ops.constant(tensors.array(f"{name}.bias").reshape(1, -1, 1))), "erf")
    x = ops.transpose(x, layers.ints(0, 2, 1))
    places = ops.constant(tensors.array("model.encoder.embed_positions.weight")[None])
    frames = ops.gather(ops.shape_of(x), layers.ints(1), layers.ints(0))
    x = ops.add(x, ops.slice(places, layers.ints(0), frames, layers.ints(1), layers.ints(1)))
    for layer in range(shape.encoder_layers):
        name = f"model.encoder.layers.{layer}"
        parts = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        queries, keys, values = layers.product(layers.norm(x, f"{name}.self_attn_layer_norm"), *parts)
        mixed = ops.scaled_dot_product_attention(*(layers.heads(part) for part in (queries, keys, values)))
        (added,) = layers.product(layers.joined(mixed), f"{name}.self_attn.out_proj")
        x = layers.feed_forward(ops.add(x, added), name)
    x = layers.norm(x, "model.encoder.layer_norm")
    return ov.Model([ops.result(_named(x, "states"))], [features], "whisper_encoder")


def cross(shape: Shape, tensors: Tensors, bits: int) -> Any:
    """Return the openvino.Model of the decoder layers' keys and values of what the encoder heard."""
    import openvino as ov

    layers = Layers(shape, tensors, bits)
    states = _input("states", [1, -1, shape.width])
    results = []
    for layer in range(shape.decoder_layers):
        name = f"model.decoder.layers.{layer}.encoder_attn"
        parts = layers.product(states, f"{name}.k_proj", f"{name}.v_proj")
        keys, values = (layers.heads(part) for part in parts)
        scale = layers.ops.constant(np.float32(shape.head_width**-0.5))
        keys = layers.ops.multiply(layers.ops.transpose(keys, layers.ints(0, 1, 3, 2)), scale)
        for part, kind in ((keys, "key"), (values, "value")):
            results.append(layers.ops.result(_named(part, cross_name(layer, kind))))
    return ov.Model(results, [states], "whisper_cross")


def cross_name(layer: int, kind: str) -> str:
    """Return the name of a decoder layer's keys or values of what was heard."""
    return f"cross.{layer}.{kind}"


class Decoder(Graph):
    """Builds the decoder: a text model's graph with a second attention in each layer."""

    def __init__(self, shape: Shape, tensors: Tensors, bits: int) -> None:
        own = Architecture(
            family="whisper",
            layers=shape.decoder_layers,
            width=shape.width,
            heads=shape.heads,
            key_heads=shape.heads,
            head_width=shape.head_width,
            context=shape.context,
            epsilon=EPSILON,
            frequencies=np.zeros(0, np.float32),
        )
        super().__init__(own, None)  # type: ignore[arg-type]
        self.layers = Layers(shape, tensors, bits)
        self.heard: dict[str, Node] = {}
        self._sizes = shape

    def graph(self) -> Any:
        """Return the openvino.Model."""
        import openvino as ov

        ops, layers, name = self.ops, self.layers, "model.decoder"
        table = layers.weights(layers.tensors.array(f"{name}.embed_tokens.weight"))
        tokens = ops.gather(layers.linear.table(table), self.inputs["input_ids"], self._int32(0))
        places = ops.constant(layers.tensors.array(f"{name}.embed_positions.weight"))
        x = ops.add(tokens, ops.gather(places, self.inputs["position_ids"], self._int32(0)))
        sizes = ops.shape_of(self.inputs["input_ids"])
        self.batch = ops.gather(sizes, self._ints(0), self._int(0))
        self.mask = self._mask(ops.gather(sizes, self._ints(1), self._int(0)))
        for layer in range(self.shape.layers):
            x = self._decoder_layer(x, layer)
        x = layers.norm(x, f"{name}.layer_norm")
        logits = _named(layers.linear.product(x, table), "logits")
        inputs = [*self.inputs.values(), *self.heard.values()]
        model = ov.Model([ops.result(logits)], self.sinks, inputs, "whisper")
        layers.linear.note(model)
        return model

    def _decoder_layer(self, x: Node, layer: int) -> Node:
        ops, layers, name = self.ops, self.layers, f"model.decoder.layers.{layer}"
        parts = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        queries, keys, values = layers.product(layers.norm(x, f"{name}.self_attn_layer_norm"), *parts)
        queries, keys, values = (
            self._heads(part, self.shape.heads, None) for part in (queries, keys, values)
        )
        keys, values = (
            self._cached(part, f"past_key_values.{layer}.{kind}present.{layer}.{kind}")
            for part, kind in ((keys, "key"), (values, "value"))
        )
        scale = self._float(self.shape.head_width**-0.5)
        mixed = ops.scaled_dot_product_attention(queries, keys, values, self.mask, scale, False)
        flat = self._ints(0, 0, self.shape.width)
        mixed = ops.reshape(ops.transpose(mixed, self._ints(0, 2, 1, 3)), flat, True)
        x = ops.add(x, layers.product(mixed, f"{name}.self_attn.out_proj")[0])
        return layers.feed_forward(self._hearing(x, layer, name), name)

    def _hearing(self, x: Node, layer: int, name: str) -> Node:
        """Return x plus the attention to what was heard: all tokens of a pass are rows of one text."""
        ops, layers, shape = self.ops, self.layers, self._sizes
        for kind, sizes in (("key", (shape.head_width, -1)), ("value", (-1, shape.head_width))):
            name_of = cross_name(layer, kind)
            self.heard[name_of] = _input(name_of, [1, shape.heads, *sizes])
        (queries,) = layers.product(
            layers.norm(x, f"{name}.encoder_attn_layer_norm"), f"{name}.encoder_attn.q_proj"
        )
        keys, values = (self.heard[cross_name(layer, kind)] for kind in ("key", "value"))
        weights = ops.softmax(ops.matmul(layers.heads(queries), keys, False, False), -1)
        mixed = layers.joined(ops.matmul(weights, values, False, False))
        (added,) = layers.product(mixed, f"{name}.encoder_attn.out_proj")
        return ops.add(x, ops.reshape(added, ops.shape_of(x), False))

    def _int32(self, value: int) -> Node:
        return self.ops.constant(np.int32(value))


def decoder(shape: Shape, tensors: Tensors, bits: int) -> Any:
    """Return the openvino.Model of the decoder."""
    return Decoder(shape, tensors, bits).graph()


def _input(name: str, sizes: list[int]) -> Node:
    import openvino as ov
    from openvino import opset13 as ops

    return _named(ops.parameter(ov.PartialShape(sizes), ov.Type.f32, name=name), name)


def _named(node: Node, name: str) -> Node:
    node.output(0).get_tensor().set_names({name})
    return node


def write(
    tensors: Tensors, config: Mapping[str, Any], into: Path, progress: Steps, name: str = "model"
) -> None:
    """Write the three graphs into a folder, weights in 8 bits.

    Raises BrokenModel for tensors that do not fit the `config`, and OSError if the disk is full.
    """
    shape = Shape.of(config)
    try:
        with progress.step(f"Converting {name} to OpenVINO", 3, "graph"):
            for file, graph in ((ENCODER, encoder), (CROSS, cross), ("openvino_model", decoder)):
                save(graph(shape, tensors, 8), into, file)
                progress.advance()
    except KeyError as error:
        raise BrokenModel(f"`{name}` has no tensor `{error.args[0]}`", "Download it again") from None
    except (ValueError, RuntimeError) as error:
        what = f"The tensors of `{name}` do not fit its own configuration: {first_line(error)}"
        raise BrokenModel(what, "Download it again") from error


def attention(model: Any) -> Any:
    """Return the decoder's graph with the weights of its attention to what was heard, instead of logits.

    They are [1, heads, tokens, frames] for each of its layers, named by `attention_name`.
    """
    import openvino as ov
    from openvino import opset13 as ops

    results = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul":
            name = node.input_value(1).get_node().get_friendly_name()
            if name.startswith("cross.") and name.endswith(".key"):
                (reader,) = node.output(0).get_target_inputs()
                weights = _named(reader.get_node(), attention_name(int(name.split(".")[1])))
                results.append(ops.result(weights))
    return ov.Model(results, model.get_sinks(), model.get_parameters(), "whisper_attention")


def attention_name(layer: int) -> str:
    """Return the name of the weights of a decoder layer's attention to what was heard."""
    return f"attention.{layer}"
