"""The arithmetic of a diffusion language model in torch, for the engine and for training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from localspec.formats.diffusion.config import DiffusionShape
from localspec.formats.diffusion.weights import EMBEDDING, HEAD, NORM

Tensor = Any  # torch.Tensor
Keys = tuple[Tensor, Tensor]  # keys and values [..., key heads, tokens, head width] of one layer


class Passed(NamedTuple):
    """The hidden states [..., tokens, width] of a pass, its keys by layer, and its attention.

    `attention` [..., tokens, seen] is that of the last layer, the mean over heads, None if not asked for.
    """

    hidden: Tensor
    keys: list[Keys]
    attention: Tensor | None


class BlockDecoder:
    """A decoder over its `weights`, by the names of Hugging Face. Each call says which token sees which."""

    def __init__(self, shape: DiffusionShape, weights: Mapping[str, Tensor]) -> None:
        import torch

        self.shape, self.weights = shape, weights
        halves = torch.arange(0, shape.head_width, 2, device=weights[EMBEDDING].device)
        self._rates = shape.base ** (-halves.double() / shape.head_width)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., width] of tokens."""
        return self.weights[EMBEDDING][tokens]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., vocab] of hidden states."""
        head = self.weights[EMBEDDING if self.shape.tied else HEAD]
        return self._norm(hidden, NORM) @ head.T

    def run(
        self,
        inputs: Tensor,
        positions: Tensor,
        visible: Tensor | None,
        past: list[Keys] | None = None,
        *,
        attention: bool = False,
    ) -> Passed:
        """Return the pass over embeddings `inputs` [..., tokens, width] at `positions` [tokens].

        `past` are the keys and values of tokens before, by layer. `visible` [tokens, seen] tells which of
        these and of the pass itself each token sees; None: all.
        """
        hidden, keys, shown = inputs, [], None
        turned = self._turns(positions, inputs.dtype)
        for layer in range(self.shape.layers):
            name = f"model.layers.{layer}."
            queries, own = self._project(self._norm(hidden, f"{name}input_layernorm.weight"), name, turned)
            keys.append(own)
            seen = own if past is None else _joined(past[layer], own)
            last = attention and layer == self.shape.layers - 1
            mixed = self._attend(queries, seen, visible)
            shown = self._weights(queries, seen[0], visible) if last else None
            hidden = hidden + mixed @ self.weights[f"{name}self_attn.o_proj.weight"].T
            inner = self._norm(hidden, f"{name}post_attention_layernorm.weight")
            hidden = hidden + self._gated(inner, f"{name}mlp.")
        return Passed(hidden, keys, shown)

    def _gated(self, inner: Tensor, name: str) -> Tensor:
        import torch

        gate, up, down = (self.weights[f"{name}{part}_proj.weight"] for part in ("gate", "up", "down"))
        return (torch.nn.functional.silu(inner @ gate.T) * (inner @ up.T)) @ down.T

    def _project(self, inner: Tensor, name: str, turned: Keys) -> tuple[Tensor, Keys]:
        """Return the queries and the keys and values [..., heads, tokens, head width], rotated."""
        shape, found = self.shape, {}
        for part, heads in (("q", shape.heads), ("k", shape.key_heads), ("v", shape.key_heads)):
            values = inner @ self.weights[f"{name}self_attn.{part}_proj.weight"].T
            if shape.bias:
                values = values + self.weights[f"{name}self_attn.{part}_proj.bias"]
            values = values.unflatten(-1, (heads, shape.head_width))
            if shape.query_norm and part != "v":
                values = self._norm(values, f"{name}self_attn.{part}_norm.weight")
            values = values.transpose(-2, -3)
            found[part] = values if part == "v" else _rotated(values, turned)
        return found["q"], (found["k"], found["v"])

    def _attend(self, queries: Tensor, seen: Keys, visible: Tensor | None) -> Tensor:
        """Return what attention mixes for each token [..., tokens, heads * head width]."""
        import torch

        groups = self.shape.heads // self.shape.key_heads
        keys, values = (each.repeat_interleave(groups, -3) if groups > 1 else each for each in seen)
        mixed = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
        return mixed.transpose(-2, -3).flatten(-2)

    def _weights(self, queries: Tensor, keys: Tensor, visible: Tensor | None) -> Tensor:
        """Return the attention [..., tokens, seen], the mean over heads, beside that of `_attend`.

        The logits so stay the same, to the bit, whether it is asked for or not.
        """
        keys = keys.repeat_interleave(self.shape.heads // self.shape.key_heads, -3)
        scores = (queries @ keys.transpose(-1, -2)).float() * self.shape.head_width**-0.5
        if visible is not None:
            scores = scores.masked_fill(~visible, float("-inf"))
        return scores.softmax(-1).mean(-3)

    def _norm(self, values: Tensor, name: str) -> Tensor:
        """Return the root-mean-square norm, computed in float32."""
        wide = values.float()
        scale = (wide.square().mean(-1, keepdim=True) + self.shape.epsilon).rsqrt()
        return (wide * scale).to(values.dtype) * self.weights[name]

    def _turns(self, positions: Tensor, dtype: Any) -> Keys:
        """Return the cosines and sines [tokens, head width / 2] of positions."""
        angles = positions.double()[:, None] * self._rates
        return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotated(values: Tensor, turned: Keys) -> Tensor:
    """Return queries or keys [..., tokens, head width] turned by their positions, in halves."""
    import torch

    first, second = values.chunk(2, -1)
    cosine, sine = turned
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _joined(past: Keys, own: Keys) -> Keys:
    import torch

    keys, values = (torch.cat(pair, -2) for pair in zip(past, own, strict=True))
    return keys, values
