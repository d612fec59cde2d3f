"""The arithmetic of hints in torch, over a frozen transformers model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.formats.huggingface.adapters import Adapters
from localspec.formats.huggingface.products import product
from localspec.formats.k_forcing.layout import OCTAVES, WARMTHS, HintShape

Tensor = Any  # torch.Tensor

COMMAND = "localspec train-head MODEL --kind k-forcing"


class TorchHints:
    """Hints over their `weights` by name, for the frozen `model` that they were trained with.

    The target's own tokens are read with its own weights alone: what the adapters add reaches hints only. So
    all rows of a text are the target's, and its KV cache serves the hints too.
    """

    def __init__(self, shape: HintShape, weights: Mapping[str, Tensor], model: Any) -> None:
        self.shape, self.weights, self.model = shape, weights, model
        self._adapters = Adapters(shape.rank, weights, model, whose="hints", command=COMMAND)
        self.reading = self._adapters.reading

    def embed(self, noise: Tensor, temperature: Tensor) -> Tensor:
        """Return the inputs [..., hints, width] of hints with `noise` [..., hints] and `temperature` [...].

        K-Forcing's pointwise encoder (2606.10820): sinusoids of both in float64, a linear map, and a residual
        MLP. Each hint begins from a vector of its place. At temperature 0 the noise says nothing.
        """
        import torch

        told = features(noise, temperature).to(self.weights["places"].device)
        found = self._product(told, "encoder.first")
        inner = torch.nn.functional.silu(self._product(found, "encoder.inner"))
        places = self.weights["places"][: noise.shape[-1]]
        return places + found + self._product(inner, "encoder.outer")

    def _product(self, x: Tensor, name: str) -> Tensor:
        return product(x, self.weights[name])


def features(noise: Tensor, temperature: Tensor) -> Tensor:
    """Return sinusoids [..., hints, features] of `noise` [..., hints] and `temperature` [...], in float32."""
    import torch

    warm = temperature.double()[..., None].expand(noise.shape)
    quiet = torch.where(warm > 0, noise.double(), 0.0)
    angles = [
        2 * torch.pi * value[..., None] * 2.0 ** torch.arange(count, device=noise.device).double()
        for value, count in ((quiet, OCTAVES), (warm / 4, WARMTHS))
    ]
    parts = [turned for angle in angles for turned in (angle.sin(), angle.cos())]
    return torch.cat(parts, -1).float()


def law(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return probabilities [..., vocab] of logits at `temperature` [...], all on the likeliest at 0."""
    import torch

    cold = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(torch.float32)
    warm = (logits.float() / temperature.float().clamp_min(1e-3)[..., None]).softmax(-1)
    return torch.where(temperature[..., None] > 0, warm, cold)


def drawn(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Return the tokens [...] of `noise` [...] by inverse CDF in the order of the vocabulary."""
    import torch

    sums = probabilities.double().cumsum(-1)
    at = torch.searchsorted(sums, (noise.double() * sums[..., -1])[..., None].contiguous(), right=True)
    return at[..., 0].clamp_max(probabilities.shape[-1] - 1)
