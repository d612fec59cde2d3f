"""Follow the graph of a decoder from its logits to its embedding, and find its weights by what they do.

The nodes of localspec's own graphs have no names that tell a matrix from another. So each operation on the
way must be the one that the decoder computes there, in graphs of every tool; any other one is refused. The
mask is not followed: config.json says whether a family attends to fewer tokens than all before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from localspec.errors import UnsupportedModel
from localspec.formats.graph_weights.ports import (
    OTHER,
    Port,
    constant,
    kind,
    name,
    number,
    same,
    source,
    through,
)
from localspec.formats.graph_weights.products import (
    Norm,
    Product,
    Turns,
    halves_of,
    norm_of,
    product_of,
    rotated,
    unscaled,
)
from localspec.formats.graph_weights.stored import Stored, stored_of

ATTENTION = "ScaledDotProductAttention"


@dataclass(frozen=True, slots=True)
class Attention:
    """The numbers of an attention: its heads, their width, the scale of scores and the rotations."""

    heads: int
    head_width: int
    scale: float
    turns: Turns | None


@dataclass(frozen=True, slots=True)
class Half:
    """Attention or a feed-forward network: its products and norms by llama.cpp's names.

    `stream` is what it is added to, times `scale`.
    """

    stream: Port
    products: dict[str, Product]
    norms: dict[str, Norm]
    scale: float


@dataclass(frozen=True, slots=True)
class Layer:
    """The products and norms of a layer, and the factors of what its two halves add."""

    products: dict[str, Product]
    norms: dict[str, Norm]
    scales: tuple[float, float]
    attention: Attention


@dataclass(frozen=True, slots=True)
class Found:
    """The weights of a decoder: its layers, the embedding, the last norm, the head, and two scales."""

    layers: list[Layer]
    table: Stored
    norm: Norm
    head: Product
    embedding_scale: float
    logit_scale: float


class Descent:
    """Reads the graph of one decoder."""

    def __init__(self, path: Path, model: Any) -> None:
        self._path, self._model = path, model

    def found(self) -> Found:
        """Return the weights; raises UnsupportedModel for a graph that computes anything else."""
        port, logit_scale = unscaled(source(self._model.output("logits"), 0))
        head = product_of(port) or self._refuse(port, "the head")
        norm = norm_of(head.x) or self._refuse(head.x, "the last norm")
        port, layers = norm.x, list[Layer]()
        while kind(port) == "Add":
            after = self._feed_forward(port)
            before, attention = self._attention(after.stream)
            products, norms = before.products | after.products, before.norms | after.norms
            layers.append(Layer(products, norms, (before.scale, after.scale), attention))
            port = before.stream
        port, embedding_scale = unscaled(port)
        if kind(port) != "Gather" or kind(source(port, 1)) != "Parameter" or number(source(port, 2)) != 0:
            self._refuse(port, "the embedding")
        return Found(layers[::-1], stored_of(source(port, 0)), norm, head, embedding_scale, logit_scale)

    def _feed_forward(self, port: Port) -> Half:
        """Return the feed-forward network whose sum `port` is."""
        stream, down, norms, scale = self._branch(port, "post_ffw_norm")
        gates = halves_of(down.x) or self._refuse(down.x, "a gated feed-forward network")
        norms |= self._before(gates, stream, "ffn_norm")
        products = {"ffn_gate": gates[0], "ffn_up": gates[1], "ffn_down": down}
        return Half(stream, products, norms, scale)

    def _attention(self, port: Port) -> tuple[Half, Attention]:
        """Return the attention whose sum `port` is."""
        stream, output, norms, scale = self._branch(port, "post_attention_norm")
        mixed = through(output.x, "Reshape", "Transpose")
        if kind(mixed) != ATTENTION:
            self._refuse(mixed, "attention")
        queries, turns = self._rotated(source(mixed, 0))
        keys, key_turns = self._rotated(self._uncached(source(mixed, 1)))
        if not _alike(turns, key_turns):
            self._refuse(mixed, "attention of queries and keys that turn alike")
        products = {
            "attn_q": self._heads(queries, norms, "attn_q_norm"),
            "attn_k": self._heads(keys, norms, "attn_k_norm"),
            "attn_v": self._heads(self._uncached(source(mixed, 2)), norms, ""),
        }
        norms |= self._before(tuple(products.values()), stream, "attn_norm")
        attention = self._numbers(mixed, turns)
        rows = [product.rows for product in products.values()]
        if rows[0] != attention.heads * attention.head_width or rows[1] != rows[2]:
            self._refuse(mixed, "attention of as many heads as its products have")
        products["attn_output"] = output
        return Half(stream, products, norms, scale), attention

    def _branch(self, port: Port, after: str) -> tuple[Port, Product, dict[str, Norm], float]:
        """Return what is added to, the added product, a norm of that, called `after`, and its factor."""
        if kind(port) == "Add":
            for at in (1, 0):
                added, scale = unscaled(source(port, at))
                norm = norm_of(added)
                product = product_of(norm.x if norm else added)
                if product:
                    return source(port, 1 - at), product, {after: norm} if norm else {}, scale
        raise self._refuse(port, "a sum with a product")

    def _before(self, products: tuple[Product, ...], stream: Port, name: str) -> dict[str, Norm]:
        """Return the norm of the stream that all products read, called `name`; none if they read that."""
        read = products[0].x
        if not all(same(product.x, read) for product in products):
            self._refuse(read, "an input of several products")
        if same(read, stream):
            return {}
        norm = norm_of(read)
        if norm is None or not same(norm.x, stream):
            raise self._refuse(read, "a norm")
        return {name: norm}

    def _rotated(self, port: Port) -> tuple[Port, Turns | None]:
        return rotated(through(port)) or self._refuse(port, "a rotation by positions")

    def _heads(self, port: Port, norms: dict[str, Norm], name: str) -> Product:
        """Return the product whose rows are heads; add a norm of each head, or of all, to `norms`."""
        for shaped in ("Transpose", "Reshape"):
            port = through(port, shaped)
            if name and name not in norms and (found := norm_of(port)):
                norms[name], port = found, found.x
        return product_of(port) or self._refuse(port, "the product of its heads")

    def _uncached(self, port: Port) -> Port:
        """Return the new keys or values among all of them, before they are repeated for other heads."""
        port = through(port, "Reshape", "Broadcast", "Unsqueeze")
        if kind(port) == "Concat" and len(port.get_node().inputs()) == 2:
            past = through(port.get_node().input_value(0), "Gather")
            if kind(past) == "ReadValue":
                return source(port, 1)
        raise self._refuse(port, "a cache of keys and values")

    def _numbers(self, attention: Port, turns: Turns | None) -> Attention:
        """Return what an attention computes with."""
        node = attention.get_node()
        sizes = attention.get_partial_shape()
        if not (sizes[1].is_static and sizes[3].is_static) or len(node.inputs()) < 4:
            self._refuse(attention, "attention of known heads, with a mask")
        heads, width = sizes[1].get_length(), sizes[3].get_length()
        scale = number(source(attention, 4)) if len(node.inputs()) > 4 else width**-0.5
        if scale is None or node.get_attributes().get("causal"):
            raise self._refuse(attention, "attention with a constant scale and a mask")
        return Attention(heads, width, scale, turns)

    def _refuse(self, port: Port, wanted: str) -> Any:
        """Raise UnsupportedModel for what a port has in the place of what is wanted."""
        what = "constant" if constant(port) is not None else kind(port)
        raise UnsupportedModel(
            f"`{self._path}` computes what the torch engine does not read: `{name(port)}` ({what}) "
            f"stands where {wanted} is expected",
            OTHER,
        )


def _alike(one: Turns | None, other: Turns | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.scale == other.scale and bool(np.array_equal(one.rates, other.rates))
