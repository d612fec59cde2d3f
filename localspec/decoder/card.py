"""A decoder whose steps between products are kernels of our own, on a card and in half precisions."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from localspec.decoder.forward import Decoder, Places, last_of
from localspec.decoder.weights import Layer, Tensor, Weights


def decoder_of(weights: Weights) -> Decoder:
    """Return the decoder that runs these weights fastest where they are."""
    return CardDecoder(weights) if _fits(weights) else Decoder(weights)


def _fits(weights: Weights) -> bool:
    return fuses(weights.norm) and not weights.shape.norms_after


def fuses(like: Tensor) -> bool:
    """Return whether kernels of our own compute with such numbers where they are."""
    return bool(like.is_cuda and like.element_size() == 2 and find_spec("triton") is not None)


class CardDecoder(Decoder):
    """Computes what Decoder does in a dozen kernels a layer, rounding less often between them."""

    first_end = 2048  # its attention stops where the text does

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

        from localspec.decoder.kernels import fused

        shape, epsilon = self.shape, self.shape.epsilon
        turns = self.turns(places.positions, torch.float32)
        more, tapped = None, []
        for at in layers or range(shape.layers):
            layer = self.weights.layers[at]
            x, read = fused.added_norm(x, more, layer.norms[0], epsilon, shape.residual_scale)
            if at in taps:
                tapped.append(x)
            turned = None if at in shape.unrotated else turns
            mixed = self._mixed(layer.qkv.product(read), layer, turned, places, keys[at], values[at])
            x, read = fused.added_norm(
                x, layer.output.product(mixed), layer.norms[1], epsilon, shape.residual_scale
            )
            more = layer.down.product(fused.gated(layer.gates.product(read)))
        x = fused.added_norm(x, more, self.weights.norm, epsilon, shape.residual_scale)[0]
        if shape.layers in taps:
            tapped.append(x)
        return x, torch.cat(tapped, -1) if tapped else None

    def normed(self, x: Tensor) -> Tensor:
        """Return hidden states [tokens, width] under the last norm."""
        from localspec.decoder.kernels import fused

        return fused.added_norm(x, None, self.weights.norm, self.shape.epsilon, 1.0)[1]

    def _mixed(
        self,
        joined: Tensor,
        layer: Layer,
        turns: tuple[Tensor, Tensor] | None,
        places: Places,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        """Keep new keys and values; return attention [tokens, heads * head_width] of the queries to all."""
        from localspec.decoder.kernels import attention, fused

        shape, texts = self.shape, places.texts
        kept = (keys, values)
        queries = fused.placed(
            joined, shape.heads, turns, layer.head_norms, shape.epsilon, kept, places.slots, texts
        )
        scale: Any = shape.attention_scale
        if places.ends is not None:
            scale = shape.head_width**-0.5 if scale is None else scale
            return attention.attend(queries, *kept, places.mask, places.ends, scale, texts)
        return self._dense(queries, places, kept, scale)

    def _dense(self, queries: Tensor, places: Places, kept: tuple[Tensor, Tensor], scale: Any) -> Tensor:
        """Return torch's attention, for passes over many tokens."""
        import torch

        attend = torch.nn.functional.scaled_dot_product_attention
        texts, mask = places.texts, places.mask
        if texts is None:
            seen = [part[None, :, : places.end] for part in kept]
            rows = queries.transpose(0, 1)[None]
        else:
            seen = [part[:, :, : places.end][texts] for part in kept]
            rows = queries.unflatten(0, places.slots.shape).transpose(1, 2)
            mask = None if mask is None else mask[:, None]
        whole = mask is None and rows.shape[2] == places.end
        if mask is None and not whole:
            mask = last_of(rows.shape[2], places.end)
        shared = self.shape.heads != self.shape.key_heads
        found = attend(rows, *seen, attn_mask=mask, is_causal=whole, scale=scale, enable_gqa=shared)
        return found.transpose(1, 2).flatten(2).flatten(0, 1)
