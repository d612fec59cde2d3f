"""The arithmetic of a decoder in torch: hidden states and logits of new tokens after those in buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.decoder.weights import Plain, Tensor, Weights


@dataclass(frozen=True, slots=True)
class Places:
    """Where a pass's tokens [tokens] are: their `positions` in the text, and their `slots` in the buffers.

    They see the first `end` slots, as far as the boolean `mask` [tokens, end] says. Without a mask they are
    the last of `end` tokens in order. Tokens of several texts, as many of each, have `slots` [texts, tokens]
    in the rows `texts` [texts] of the buffers, and a `mask` [texts, tokens, end] or none. Few tokens with a
    mask may have the `ends` [texts], behind which none sees a slot.
    """

    positions: Tensor
    slots: Tensor
    end: int
    mask: Tensor | None = None
    texts: Tensor | None = None
    ends: Tensor | None = None


class Decoder:
    """Runs passes of a decoder over buffers of keys and values [layers, key_heads, room, head_width]."""

    first_end = 128  # slots that the shortest texts attend to; doubled for longer ones

    def __init__(self, weights: Weights) -> None:
        self.weights, self.shape = weights, weights.shape

    def states(
        self, ids: Tensor, places: Places, keys: Tensor, values: Tensor, taps: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Read tokens into their slots; return the last hidden states [tokens, width], normed, and taps.

        Those are the states after the layers `taps`, from 1 on, side by side: [tokens, taps * width].
        """
        x, tapped = self.through(self.embedded(ids), places, keys, values, taps=taps)
        return self.normed(x), tapped

    def embedded(self, ids: Tensor) -> Tensor:
        """Return what the first layer reads of token ids: [tokens, width]."""
        found = self.weights.table.lookup(ids).to(self.weights.norm.dtype)
        return scaled(found, self.shape.embedding_scale)

    def through(
        self,
        x: Tensor,
        places: Places,
        keys: Tensor,
        values: Tensor,
        layers: range | None = None,
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states [tokens, width] after some layers, or all, and those after taps."""
        import torch

        shape = self.shape
        turns = self.turns(places.positions, x.dtype)
        shared = shape.heads // shape.key_heads
        mask = None if places.mask is None else torch.cat([places.mask] * shared, -2)
        tapped = []
        for at in layers or range(shape.layers):
            attend = self._attend if places.texts is None else self._attend_apart
            mixed = attend(self.heads(at, x, turns), places, mask, keys[at], values[at])
            x = self.after_attention(at, x, mixed)
            if at + 1 in taps:
                tapped.append(x)
        return x, torch.cat(tapped, -1) if tapped else None

    def normed(self, x: Tensor) -> Tensor:
        """Return hidden states [tokens, width] under the last norm."""
        return self._norm(x, self.weights.norm)

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits [rows, vocab] of last hidden states [rows, width]."""
        return scaled(self.weights.head.product(states), self.shape.logit_scale)

    def turns(self, positions: Tensor, dtype: Any) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines [tokens, 1, rotated width] of the positions.

        Those are [tokens], or [tokens, rotated width / 2], one for each rate. A half turned against the other
        one is `x.roll(half)`, whose first half takes the minus sign.
        """
        import torch

        apart = positions if positions.ndim > 1 else positions[:, None]
        angles = apart[:, None].float() * self.weights.rates
        cosine, sine = (scaled(part, self.shape.rope_scale) for part in (angles.cos(), angles.sin()))
        return torch.cat([cosine, cosine], -1).to(dtype), torch.cat([-sine, sine], -1).to(dtype)

    def heads(self, at: int, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [..., tokens, heads, head_width] of a layer, normed and rotated."""
        shape, layer = self.shape, self.weights.layers[at]
        parts = (shape.heads, shape.key_heads, shape.key_heads)
        joined = layer.qkv.product(self._before(x, layer.norms[0]))
        queries, keys, values = (
            part.unflatten(-1, (-1, shape.head_width))
            for part in joined.split([count * shape.head_width for count in parts], -1)
        )
        return self._turned(at, queries, 0, turns), self._turned(at, keys, 1, turns), values

    def keys(self, at: int, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return the keys of `heads` alone, for which a plain matrix computes nothing else."""
        shape, layer = self.shape, self.weights.layers[at]
        if not isinstance(layer.qkv, Plain):
            return self.heads(at, x, turns)[1]
        found = layer.qkv.part(shape.heads * shape.head_width, shape.key_heads * shape.head_width)
        keys = found.product(self._before(x, layer.norms[0])).unflatten(-1, (-1, shape.head_width))
        return self._turned(at, keys, 1, turns)

    def _turned(self, at: int, x: Tensor, kind: int, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return queries (kind 0) or keys (kind 1) [..., tokens, heads, head_width], normed and rotated."""
        norms = self.weights.layers[at].head_norms
        if norms:
            x = self._head_norm(x, norms[kind])
        return x if at in self.shape.unrotated else _rotated(x, *turns)

    def after_attention(self, at: int, x: Tensor, mixed: Tensor) -> Tensor:
        """Return what a layer writes: x, its attention `mixed` [..., heads * head_width], and the rest."""
        import torch

        layer = self.weights.layers[at]
        x = self._added(x, layer.output.product(mixed), layer.norms[0])
        gate, up = layer.gates.product(self._before(x, layer.norms[1])).chunk(2, -1)
        fed = layer.down.product(torch.nn.functional.silu(gate) * up)
        return self._added(x, fed, layer.norms[1])

    def _head_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x [..., heads, head_width] with each head normed, or with all heads together."""
        return (
            self._norm(x.flatten(-2), weight).view_as(x) if self.shape.norms_after else self._norm(x, weight)
        )

    def _attend(
        self,
        heads: tuple[Tensor, Tensor, Tensor],
        places: Places,
        mask: Tensor | None,
        kept_keys: Tensor,
        kept_values: Tensor,
    ) -> Tensor:
        """Keep new keys and values; return attention [tokens, heads * head_width] of the queries to all.

        `mask` [heads of a key * tokens, end] is that of the pass, once for each head that shares a key: these
        heads are rows of one product, so that no key is repeated.
        """
        new = tuple(part.transpose(0, 1) for part in heads)
        for kept, part in ((kept_keys, new[1]), (kept_values, new[2])):
            kept.index_copy_(1, places.slots, part)
        seen = (part[None, :, : places.end] for part in (kept_keys, kept_values))
        return self._mixed_heads([part[None] for part in new], seen, mask, places.end)

    def _attend_apart(
        self,
        heads: tuple[Tensor, Tensor, Tensor],
        places: Places,
        mask: Tensor | None,
        kept_keys: Tensor,
        kept_values: Tensor,
    ) -> Tensor:
        """Keep new keys and values of several texts, and let the queries of each attend to its own."""
        texts, slots = places.texts, places.slots
        assert texts is not None
        queries, keys, values = (part.unflatten(0, slots.shape) for part in heads)
        for kept, new in ((kept_keys, keys), (kept_values, values)):
            kept[texts[:, None], :, slots] = new
        seen = (kept[:, :, : places.end][texts] for kept in (kept_keys, kept_values))
        each = [part.transpose(1, 2) for part in (queries, keys, values)]
        return self._mixed_heads(each, seen, None if mask is None else mask[:, None], places.end)

    def _mixed_heads(
        self, new: Sequence[Tensor], seen: Iterable[Tensor], mask: Tensor | None, end: int
    ) -> Tensor:
        """Return attention [texts * tokens, heads * head_width] of new queries [texts, heads, tokens, ...].

        They attend to new keys and values where those are all of a text, and else to the first `end` of the
        buffers, `seen`. Without a mask they are the last of them in order.
        """
        import torch

        attention = torch.nn.functional.scaled_dot_product_attention
        queries, scale = new[0], self.shape.attention_scale
        count = queries.shape[2]
        if mask is None and end == count:
            found = attention(*new, is_causal=True, enable_gqa=True, scale=scale)
        elif mask is None:
            found = attention(queries, *seen, attn_mask=last_of(count, end), enable_gqa=True, scale=scale)
        else:
            rows = queries.reshape(len(queries), self.shape.key_heads, -1, self.shape.head_width)
            found = attention(rows, *seen, attn_mask=mask, scale=scale).reshape(queries.shape)
        return found.transpose(1, 2).flatten(2).flatten(0, 1)

    def _before(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return what a sub-block reads: x, normed unless its norm follows it."""
        return x if self.shape.norms_after else self._norm(x, weight)

    def _added(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return x and what a sub-block adds."""
        if self.shape.norms_after:
            y = self._norm(y, weight)
        return x + scaled(y, self.shape.residual_scale)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019)."""
        import torch

        return torch.nn.functional.rms_norm(x, weight.shape, weight, self.shape.epsilon)


def last_of(count: int, end: int) -> Any:
    """Return the mask of the last `count` of `end` tokens in order, which flash attention knows."""
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(count, end)


def scaled(x: Tensor, scale: float) -> Tensor:
    """Return x times a scale, x itself where that is 1."""
    return x if scale == 1 else x * scale


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return x [tokens, heads, head_width] with its first columns turned, first half against second half."""
    import torch

    width = cosine.shape[-1]
    turned = x if width == x.shape[-1] else x[..., :width]
    turned = torch.addcmul(turned * cosine, turned.roll(width // 2, -1), sine)
    return turned if width == x.shape[-1] else torch.cat([turned, x[..., width:]], -1)
