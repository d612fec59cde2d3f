"""Passes over embeddings of tokens and pictures, in which visual tokens may sit out some layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.engines.torch.decoder.forward import Decoder
from localspec.engines.torch.decoder.weights import Tensor
from localspec.engines.torch.vision.memory import LayerRows
from localspec.pictures.schedule import Schedule

Turns = tuple[Tensor, Tensor]
ALL = Schedule()


class Reader:
    """Reads embeddings through a decoder; keys and values are kept of the tokens that ran in a layer.

    Routing is that of Reroute (2606.12412, section 3): before a decision layer all visual tokens are scored
    by the attention that the last token pays them there, the best run until the next decision with their own
    positions, and the others keep their states. Without returns only those that ran are scored, which is
    PyramidDrop's rule (2410.17247), and with a single decision FastV's (2403.06764).
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.shape = decoder, decoder.shape

    def memory(self, most: int) -> list[LayerRows]:
        """Return empty rows of all layers, for texts of at most so many tokens."""
        return [LayerRows(most) for _ in range(self.shape.layers)]

    def read(
        self,
        x: Tensor,
        turns: Turns,
        memory: Sequence[LayerRows],
        visual: Tensor | None = None,
        schedule: Schedule = ALL,
    ) -> Tensor:
        """Append embeddings x [texts, tokens, width] to texts; return their last hidden states, normed.

        `turns` are cosines and sines [tokens, 1, rotated width] of their positions, and `visual` the places
        of visual tokens among them, the last one excepted. The states of a token that sat out the last
        layers are those with which it did.
        """
        import torch

        texts, count, _ = x.shape
        if visual is None or not schedule.decisions:
            for at in range(self.shape.layers):
                x = self._layer(at, x, turns, memory[at])
            return self.decoder.normed(x)
        here, text, offered = x, _others(count, visual), visual.expand(texts, -1)
        run = torch.arange(count, device=x.device).expand(texts, count)
        picked = turns
        for at in range(self.shape.layers):
            if (keep := schedule.keep_at(at)) is not None:
                x = _scattered(x, run, here)
                best = self._best(at, x, turns, text, offered, keep)
                offered = offered if schedule.returns else best
                run = torch.cat([text.expand(texts, -1), best], -1).sort(-1).values
                here, picked = _gathered(x, run), (turns[0][run], turns[1][run])
            here = self._layer(at, here, picked, memory[at])
        return self.decoder.normed(_scattered(x, run, here))

    def _layer(self, at: int, x: Tensor, turns: Turns, rows: LayerRows) -> Tensor:
        """Return what a layer writes for tokens that all see those before them, and keep their keys."""
        import torch

        queries, keys, values = (part.transpose(1, 2) for part in self.decoder.heads(at, x, turns))
        past, count = rows.length, x.shape[1]
        seen = rows.append(keys, values)
        masked: dict[str, Any] = (
            {"is_causal": True} if not past else {"attn_mask": _last(count, past + count)}
        )
        found = torch.nn.functional.scaled_dot_product_attention(
            queries,
            *(seen if past else (keys, values)),
            enable_gqa=self.shape.heads != self.shape.key_heads,
            scale=self.shape.attention_scale,
            **({} if count == 1 else masked),
        )
        return self.decoder.after_attention(at, x, found.transpose(1, 2).flatten(2))

    def _best(self, at: int, x: Tensor, turns: Turns, text: Tensor, offered: Tensor, keep: int) -> Tensor:
        """Return the places [texts, keep] of those visual tokens among the offered that score highest."""
        scores = self._scores(at, x, turns, text, offered)
        return offered.gather(-1, scores.topk(min(keep, offered.shape[1]), -1).indices)

    def _scores(self, at: int, x: Tensor, turns: Turns, text: Tensor, offered: Tensor) -> Tensor:
        """Return the attention [texts, offered] of the last token in a layer, the mean of its heads.

        The softmax is over text and offered tokens of this pass, in float32.
        """
        import torch

        shape = self.shape
        seen = torch.cat([offered, text.expand(len(x), -1)], -1)
        query = self.decoder.heads(at, x[:, -1:], (turns[0][-1:], turns[1][-1:]))[0]
        keys = self.decoder.keys(at, _gathered(x, seen), (turns[0][seen], turns[1][seen]))
        grouped = query.float().unflatten(2, (shape.key_heads, -1))[:, 0]  # [texts, key heads, shared, width]
        scale = shape.head_width**-0.5 if shape.attention_scale is None else shape.attention_scale
        products = torch.einsum("bksw,btkw->bkst", grouped, keys.float()) * scale
        return products.softmax(-1).mean((1, 2))[:, : offered.shape[1]]


def _others(count: int, visual: Tensor) -> Tensor:
    """Return the places that are not visual."""
    import torch

    outside = torch.ones(count, dtype=torch.bool, device=visual.device)
    outside[visual] = False
    return outside.nonzero()[:, 0]


def _gathered(x: Tensor, places: Tensor) -> Tensor:
    """Return the rows of x [texts, tokens, width] at places [texts, n]."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))


def _scattered(x: Tensor, places: Tensor, new: Tensor) -> Tensor:
    """Return x [texts, tokens, width] with `new` rows at places [texts, n]."""
    return x.scatter(1, places[..., None].expand(-1, -1, x.shape[-1]), new)


def _last(count: int, end: int) -> Any:
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(count, end)
