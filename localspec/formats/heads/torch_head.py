"""A head's arithmetic in torch, for training it and for targets that run there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from localspec.formats.heads.layout import LAYER, HeadShape
from localspec.formats.huggingface.products import product, rms_norm

Tensor = Any  # torch.Tensor

ATTENTION, MLP = f"{LAYER}self_attn.", f"{LAYER}mlp."
INPUT_NORM, STATE_NORM = f"{LAYER}input_layernorm.weight", f"{LAYER}hidden_norm.weight"
OUTPUT_NORM = f"{LAYER}post_attention_layernorm.weight"


class TorchHead:
    """A head over its `weights` by their published names; `embedding` [vocab, width] is the target's."""

    def __init__(self, shape: HeadShape, weights: Mapping[str, Tensor], embedding: Tensor) -> None:
        import torch

        self.shape, self.weights, self.embedding = shape, weights, embedding
        self.rates = torch.from_numpy(shape.frequencies).to(embedding.device)

    def fuse(self, states: Tensor) -> Tensor:
        """Return g = fc(f) [..., tokens, width] of the target's states [..., tokens, layers * width]."""
        return self._product(states, "fc.weight")

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits [..., kept] of the head's own states."""
        return self._product(self.normed(states), "lm_head.weight")

    def normed(self, states: Tensor) -> Tensor:
        """Return the head's own states as the matrix of the vocabulary reads them."""
        return self._norm(states, "norm.weight")

    def project(self, tokens: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [..., heads, tokens, head_width] of pairs of token and state.

        They read u = [norm(embedding); norm(state)], and are rotated by their `positions` [tokens].
        """
        import torch

        embedded = self._norm(self.embedding[tokens].to(states.dtype), INPUT_NORM)
        pair = torch.cat([embedded, self._norm(states, STATE_NORM)], -1)
        counts = (self.shape.heads, self.shape.key_heads, self.shape.key_heads)
        queries, keys, values = (
            self._product(pair, f"{ATTENTION}{name}_proj.weight")
            .unflatten(-1, (count, self.shape.head_width))
            .transpose(-2, -3)
            for name, count in zip("qkv", counts, strict=True)
        )
        angles = positions[:, None].float() * self.rates
        cosine, sine = (
            torch.cat([part, part], -1) * self.shape.rope_scale for part in (angles.cos(), angles.sin())
        )
        return _rotated(queries, cosine, sine), _rotated(keys, cosine, sine), values

    def finish(self, states: Tensor, mixed: Tensor) -> Tensor:
        """Return the head's own states a after attention, [..., heads, tokens, head_width], and its MLP."""
        import torch

        if self.shape.norms_residual:
            states = self._norm(states, STATE_NORM)
        x = states + self._product(mixed.transpose(-2, -3).flatten(-2), f"{ATTENTION}o_proj.weight")
        y = self._norm(x, OUTPUT_NORM)
        gate, up = (self._product(y, f"{MLP}{name}_proj.weight") for name in ("gate", "up"))
        return x + self._product(torch.nn.functional.silu(gate) * up, f"{MLP}down_proj.weight")

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, sees: Tensor | None = None) -> Tensor:
        """Return attention of tokens to what each `sees` [tokens, keys], to all up to itself if None.

        The tokens are then the last ones.
        """
        import torch

        new, total = queries.shape[-2], keys.shape[-2]
        if sees is None:
            sees = torch.ones(new, total, dtype=torch.bool, device=queries.device).tril(total - new)
        return torch.nn.functional.scaled_dot_product_attention(
            queries, *(self._repeated(part) for part in (keys, values)), attn_mask=sees
        )

    def unroll(self, tokens: Tensor, states: Tensor, depth: int) -> Iterator[Tensor]:
        """Yield the head's own states [texts, tokens, width] of `depth` guesses in a row after each token.

        Position i of guess j has read the token i + 1 + j and, in place of the target's `states` after
        j = 0, its own of the guess before (training-time test, EAGLE-3, section 3.2). It attends to the first
        guesses of the positions up to i, and to the earlier ones of its own. `tokens` [texts, tokens].
        """
        import torch

        own = self.fuse(states)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        count = tokens.shape[1]
        for guess in range(depth):
            shifted = torch.nn.functional.pad(tokens[:, 1 + guess :], (0, min(1 + guess, count)))
            positions = torch.arange(guess, guess + count, device=tokens.device)
            query, key, value = self.project(shifted, own, positions)
            keys.append(self._repeated(key))
            values.append(self._repeated(value))
            own = self.finish(own, _guess_attention(query, keys, values))
            yield own

    def _repeated(self, x: Tensor) -> Tensor:
        """Repeat keys or values for each query head that shares them."""
        return x.repeat_interleave(self.shape.heads // self.shape.key_heads, -3)

    def _product(self, x: Tensor, name: str) -> Tensor:
        return product(x, self.weights[name])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weights[name], self.shape.epsilon)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    import torch

    first, second = x.float().chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return (x.float() * cosine + turned * sine).to(x.dtype)


def _guess_attention(queries: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Return attention to the first `keys` up to each position, and to the later ones at the same position.

    All are [texts, heads, tokens, head_width].
    """
    import torch

    count, scale = queries.shape[-2], queries.shape[-1] ** -0.5
    later = torch.ones(count, count, dtype=torch.bool, device=queries.device).triu(1)
    scores = [(queries @ keys[0].transpose(-1, -2)).masked_fill(later, float("-inf"))]
    scores += [(queries * key).sum(-1, keepdim=True) for key in keys[1:]]
    shares = (torch.cat(scores, -1).float() * scale).softmax(-1).to(values[0].dtype)
    mixed = shares[..., :count] @ values[0]
    for at, value in enumerate(values[1:]):
        mixed = mixed + shares[..., count + at, None] * value
    return mixed
