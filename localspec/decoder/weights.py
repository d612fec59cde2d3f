"""A decoder's weights on a torch device, matrices that read the same numbers joined to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.weights import hf_name

Tensor = Any  # torch.Tensor

QKV, GATES = ("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up")


class Matrix(Protocol):
    """A matrix [rows, columns] in some form."""

    @property
    def rows(self) -> int:
        """The number of its rows."""

    def product(self, x: Tensor) -> Tensor:
        """Return x [tokens, columns] times the transposed matrix, [tokens, rows]."""

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the rows [ids, columns] of token ids."""


@dataclass(frozen=True, slots=True)
class Plain:
    """A matrix in the precision that the decoder computes in, with the bias [rows] of its products."""

    values: Tensor
    bias: Tensor | None = None

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return len(self.values)

    def product(self, x: Tensor) -> Tensor:
        """Return x [tokens, columns] times the transposed matrix, [tokens, rows]."""
        import torch

        return torch.nn.functional.linear(x, self.values, self.bias)

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the rows [ids, columns] of token ids."""
        return self.values[ids]

    def part(self, first: int, count: int) -> Plain:
        """Return the matrix of some of its rows, which shares memory."""
        rows = slice(first, first + count)
        return Plain(self.values[rows], None if self.bias is None else self.bias[rows])


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of a layer.

    `norms` are those of attention and of the feed-forward network. `head_norms` are the weights of norms of
    queries and of keys, [width of a head] or of all heads, None in families without them.
    """

    qkv: Matrix
    output: Matrix
    gates: Matrix
    down: Matrix
    norms: tuple[Tensor, Tensor]
    head_norms: tuple[Tensor, Tensor] | None


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a decoder; `rates` are its rotary frequencies in float32."""

    shape: Architecture
    table: Matrix
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Matrix
    rates: Tensor


class Source(Protocol):
    """Tensors by llama.cpp's names, on the device and in the form of a decoder."""

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name, suffix included."""

    def vector(self, name: str) -> Tensor:
        """Return a norm by its name, suffix included."""

    def matrix(self, names: Sequence[str]) -> Matrix:
        """Return matrices of one number of columns, joined, with their biases."""

    def table(self) -> Matrix:
        """Return the embedding."""


def read(shape: Architecture, source: Source) -> Weights:
    """Return the weights of a decoder; raises BrokenModel if a tensor is missing."""
    import torch

    table = source.table()
    layers = tuple(_layer(shape, source, f"blk.{layer}.") for layer in range(shape.layers))
    norm = source.vector("output_norm.weight")
    return Weights(
        shape=shape,
        table=table,
        layers=layers,
        norm=norm,
        head=table if shape.tied else source.matrix(["output"]),
        rates=torch.from_numpy(shape.frequencies).to(norm.device),
    )


def _layer(shape: Architecture, source: Source, name: str) -> Layer:
    after = shape.norms_after
    norms = ("post_attention_norm", "post_ffw_norm") if after else ("attn_norm", "ffn_norm")
    heads = (f"{name}attn_q_norm.weight", f"{name}attn_k_norm.weight")
    attention, feed_forward = (source.vector(f"{name}{norm}.weight") for norm in norms)
    return Layer(
        qkv=source.matrix([f"{name}{part}" for part in QKV]),
        output=source.matrix([f"{name}attn_output"]),
        gates=source.matrix([f"{name}{part}" for part in GATES]),
        down=source.matrix([f"{name}ffn_down"]),
        norms=(attention, feed_forward),
        head_norms=(source.vector(heads[0]), source.vector(heads[1])) if source.has(heads[0]) else None,
    )


class ModuleTensors:
    """The tensors of a transformers model, which then are views of the joined ones: both share memory."""

    def __init__(self, model: Any, named: Callable[[str], str] = str) -> None:
        """`named` gives a parameter the name that it has in a language model."""
        parameters = model.named_parameters(remove_duplicate=False)
        self._found = {named(name): parameter for name, parameter in parameters}

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name."""
        return hf_name(name) in self._found

    def vector(self, name: str) -> Tensor:
        """Return a norm."""
        return self._found[hf_name(name)].data

    def table(self) -> Matrix:
        """Return the embedding."""
        return Plain(self.vector("token_embd.weight"))

    def matrix(self, names: Sequence[str]) -> Matrix:
        """Return matrices joined, with their biases."""
        joined = {QKV[0]: "attn_qkv", GATES[0]: "ffn_gate_up"}
        layer, _, part = names[0].rpartition(".")
        if part in joined and self.has(f"{layer}.{joined[part]}.weight"):
            names = [f"{layer}.{joined[part]}"]
        biased = self.has(f"{names[0]}.bias")
        bias = self._joined([f"{name}.bias" for name in names]) if biased else None
        return Plain(self._joined([f"{name}.weight" for name in names]), bias)

    def _joined(self, names: Sequence[str]) -> Tensor:
        import torch

        parts = [self._found[hf_name(name)] for name in names]
        if len(parts) == 1:
            return parts[0].data
        whole = torch.cat([part.data for part in parts])
        for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
            part.data = view
        return whole
