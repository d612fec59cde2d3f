"""The layer of a head: in torch's own steps, or in a dozen kernels for half precisions on a card."""

from __future__ import annotations

from typing import Any, NamedTuple

from localspec.decoder.card import fuses
from localspec.decoder.rows import facts_of
from localspec.decoder.weights import Tensor
from localspec.formats.heads.torch_head import ATTENTION, INPUT_NORM, MLP, OUTPUT_NORM, STATE_NORM, TorchHead

FEW = 16  # tokens whose attention is split among programs


class Kept(NamedTuple):
    """Keys and values [key_heads, room, head_width] of a text, and what turns the positions of the room."""

    keys: Tensor
    values: Tensor
    turns: tuple[Tensor, Tensor] | None


class HeadLayer:
    """Reads pairs of token and state in torch."""

    def __init__(self, head: TorchHead) -> None:
        self._head, self.shape, self.place = head, head.shape, head.embedding.device

    def turns(self, room: int) -> tuple[Tensor, Tensor] | None:
        """Return what `read` needs of the positions up to `room`."""
        return None

    def read(self, ids: Tensor, led: Tensor, slots: Tensor, end: int, kept: Kept) -> tuple[Tensor, Tensor]:
        """Keep the keys of tokens at `slots`, which see those up to themselves among the first `end`.

        Return the head's own states [tokens, width] after them, and these under the last norm.
        """
        import torch

        queries, keys, values = self._head.project(ids, led, slots)
        kept.keys.index_copy_(1, slots, keys)
        kept.values.index_copy_(1, slots, values)
        sees = torch.arange(end, device=self.place) <= slots[:, None]
        mixed = self._head.attend(queries, kept.keys[:, :end], kept.values[:, :end], sees)
        own = self._head.finish(led, mixed)
        return own, self._head.normed(own)

    def logits(self, normed: Tensor) -> Tensor:
        """Return the logits [rows, kept] of states under the last norm."""
        import torch

        return torch.nn.functional.linear(normed, self._head.weights["lm_head.weight"])

    def facts(self, logits: Tensor) -> Tensor:
        """Return what greedy guesses need of logits."""
        return facts_of(logits.float())


class FusedLayer(HeadLayer):
    """Reads them with kernels of the decoder of our own; the matrices that read the same lie in one."""

    def __init__(self, head: TorchHead) -> None:
        super().__init__(head)
        self._qkv = _joined(head.weights, [f"{ATTENTION}{name}_proj.weight" for name in "qkv"])
        self._gates = _joined(head.weights, [f"{MLP}{name}_proj.weight" for name in ("gate", "up")])

    def turns(self, room: int) -> tuple[Tensor, Tensor] | None:
        """Return cosines and signed sines [room, 1, head_width] in float32."""
        import torch

        angles = torch.arange(room, device=self.place)[:, None, None].float() * self._head.rates
        cosine, sine = (part * self.shape.rope_scale for part in (angles.cos(), angles.sin()))
        return torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)

    def read(self, ids: Tensor, led: Tensor, slots: Tensor, end: int, kept: Kept) -> tuple[Tensor, Tensor]:
        """Return what HeadLayer does, rounded less often."""
        import torch

        from localspec.decoder.kernels import attention, fused

        head, shape, linear = self._head, self.shape, torch.nn.functional.linear
        weights, epsilon = head.weights, shape.epsilon
        embedded = head.embedding[ids].to(led.dtype)
        states = fused.added_norm(led, None, weights[STATE_NORM], epsilon, 1.0)[1]
        pair = torch.cat([fused.added_norm(embedded, None, weights[INPUT_NORM], epsilon, 1.0)[1], states], -1)
        assert kept.turns is not None
        turns = kept.turns[0][slots], kept.turns[1][slots]
        buffers, joined = (kept.keys, kept.values), linear(pair, self._qkv)
        queries = fused.placed(joined, shape.heads, turns, None, epsilon, buffers, slots, None)
        sees = torch.arange(end, device=self.place) <= slots[:, None]
        if len(ids) <= FEW:
            scale = shape.head_width**-0.5
            mixed = attention.attend(queries, *buffers, sees, slots[-1:] + 1, scale, None)
        else:
            keys, values = (part[:, :end] for part in buffers)
            mixed = head.attend(queries.transpose(0, 1), keys, values, sees).transpose(0, 1).flatten(1)
        x, y = fused.added_norm(
            states if shape.norms_residual else led,
            linear(mixed, weights[f"{ATTENTION}o_proj.weight"]),
            *(weights[OUTPUT_NORM], epsilon, 1.0),
        )
        fed = linear(fused.gated(linear(y, self._gates)), weights[f"{MLP}down_proj.weight"])
        return fused.added_norm(x, fed, weights["norm.weight"], epsilon, 1.0)

    def facts(self, logits: Tensor) -> Tensor:
        """Return what greedy guesses need of logits, in one kernel."""
        from localspec.decoder.kernels import facts

        return facts.greedy(logits)


def layer_of(head: TorchHead) -> HeadLayer:
    """Return the layer that runs a head fastest where its weights are."""
    return FusedLayer(head) if fuses(head.weights["norm.weight"]) else HeadLayer(head)


def _joined(weights: Any, names: list[str]) -> Tensor:
    """Return matrices one below the other; the single ones become views of them."""
    import torch

    found = torch.cat([weights[name] for name in names])
    weights |= dict(zip(names, found.split([len(weights[name]) for name in names]), strict=True))
    return found
