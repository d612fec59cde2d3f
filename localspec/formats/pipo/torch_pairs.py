"""The arithmetic of PIPO in torch, over a frozen transformers model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.core.types import PAD
from localspec.formats.heads.torch_head import TorchHead
from localspec.formats.huggingface.adapters import Adapters
from localspec.formats.huggingface.products import product, rms_norm
from localspec.formats.pipo.layout import HEAD, LM_HEAD, PairShape

Tensor = Any  # torch.Tensor

COMMAND = "localspec train-head MODEL --kind pipo"


class TorchPairs:
    """PIPO over its `weights` by name, for the frozen `model` that they were trained with (2605.27255).

    Two tokens become one latent, which the model reads with adapters in its layers. What it says after a pair
    is about the first token of the next; a head tells the second one from that token and the state before it,
    and how sure it is of it.
    """

    def __init__(self, shape: PairShape, weights: Mapping[str, Tensor], model: Any) -> None:
        self.shape, self.weights, self.model = shape, weights, model
        self.adapters = Adapters(shape.rank, weights, model, whose="weights of PIPO", command=COMMAND)
        own = {name.removeprefix(HEAD): value for name, value in weights.items() if name.startswith(HEAD)}
        own[LM_HEAD] = model.get_output_embeddings().weight
        self.head = TorchHead(shape.head, own, model.get_input_embeddings().weight)

    def merged(self) -> TorchPairs:
        """Return the same over a copy of the model whose layers have the adapters in their weights."""
        return TorchPairs(self.shape, self.weights, self.adapters.merged())

    def latents(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the latents [..., width] of pairs of tokens [...], of which the second may be PAD.

        z = W2 silu(W1 [e1; e2]), the compressor of 2605.27255.
        """
        import torch

        table = self.head.embedding
        pad = self.weights["pad"].to(table.dtype)
        embedded = torch.where((second == PAD)[..., None], pad, table[second.clamp_min(0)])
        inner = self._product(torch.cat([table[first], embedded], -1), "compressor.first")
        return self._product(torch.nn.functional.silu(inner), "compressor.second")

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits [..., vocab] of the token after a pair, from the model's last states."""
        return product(states, self.head.weights[LM_HEAD])

    def project(
        self, first: Tensor, before: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what the head reads, [..., pairs, width], and its queries, keys and values.

        It reads the first tokens [..., pairs] of pairs, and the states `before` them, [..., pairs, width].
        """
        import torch

        embedded = self._norm(self.head.embedding[first].to(before.dtype), "norms.token")
        read = self.head.fuse(torch.cat([embedded, self._norm(before, "norms.state")], -1))
        return read, *self.head.project(first, read, positions)

    def read(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return three parts [texts, pairs, width] of whole texts in pairs [texts, pairs].

        These are the states before each pair, those after it, and the head's after its first token.
        """
        import torch

        with self.adapters.reading():
            found = self.model.base_model(inputs_embeds=self.latents(first, second), use_cache=False)
        after = found.last_hidden_state
        start = self.weights["start"].to(after.dtype).expand(len(first), 1, -1)
        before = torch.cat([start, after[:, :-1]], 1)
        positions = torch.arange(first.shape[1], device=first.device)
        own, queries, keys, values = self.project(first, before, positions)
        return before, after, self.head.finish(own, self.head.attend(queries, keys, values))

    def sure(self, before: Tensor, own: Tensor) -> Tensor:
        """Return log-odds [...] that the target would say what the head says after a pair's first token.

        They are read from the states `before` the pair and the head's own, without a gradient to either.
        """
        import torch

        both = self._norm(torch.cat([before, own], -1).detach(), "confidence.norm")
        inner = torch.nn.functional.silu(self._product(both, "confidence.first"))
        return self._product(inner, "confidence.second")[..., 0].float() + self.weights["confidence.bias"]

    def _product(self, x: Tensor, name: str) -> Tensor:
        return product(x, self.weights[name])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weights[name], self.shape.head.epsilon)
