"""The arithmetic of hints in torch, over a frozen transformers model."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from localspec.errors import UnsupportedModel
from localspec.formats.k_forcing.layout import ADAPTERS, DOWN, OCTAVES, UP, WARMTHS, HintShape

Tensor = Any  # torch.Tensor


class TorchHints:
    """Hints over their `weights` by name, for the frozen `model` that they were trained with.

    The target's own tokens are read with its own weights alone: what the adapters add reaches hints only. So
    all rows of a text are the target's, and its KV cache serves the hints too.
    """

    def __init__(self, shape: HintShape, weights: Mapping[str, Tensor], model: Any) -> None:
        self.shape, self.weights, self.model = shape, weights, model
        self._modules = linear_layers(model)
        for name, module in self._modules.items():
            down, up = (weights.get(f"{name}{part}") for part in (DOWN, UP))
            sizes = (shape.rank, module.in_features), (module.out_features, shape.rank)
            if down is None or up is None or (tuple(down.shape), tuple(up.shape)) != sizes:
                raise UnsupportedModel(
                    f"The hints have no adapter for `{name}` of this model",
                    "Train some for it: `localspec train-head MODEL --kind k-forcing`",
                )

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

    @contextmanager
    def reading(self, first: int) -> Iterator[None]:
        """Let the passes of this thread read the tokens from `first` on as hints."""
        owner = threading.get_ident()

        def adapter(name: str) -> Any:
            def add(module: Any, given: Any, output: Any) -> Any:
                import torch

                if threading.get_ident() != owner or first >= output.shape[-2]:
                    return None
                x = given[0][..., first:, :]
                added = self._product(self._product(x, f"{name}{DOWN}"), f"{name}{UP}").to(output.dtype)
                return torch.cat([output[..., :first, :], output[..., first:, :] + added], -2)

            return add

        handles = [module.register_forward_hook(adapter(name)) for name, module in self._modules.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _product(self, x: Tensor, name: str) -> Tensor:
        import torch

        weight = self.weights[name]
        if not torch.is_autocast_enabled(x.device.type):
            x = x.to(weight.dtype)
        return torch.nn.functional.linear(x, weight)


def linear_layers(model: Any) -> dict[str, Any]:
    """Return the linear maps of a model's layers by the names of their adapters.

    Raises UnsupportedModel for a family without any.
    """
    import torch

    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise UnsupportedModel(
            "The layers of this model cannot be told apart", "Train a head of another kind"
        )
    found = {name: module for name, module in layers.named_modules() if isinstance(module, torch.nn.Linear)}
    if not found:
        raise UnsupportedModel("The layers of this model have no linear maps", "Train a head of another kind")
    return {f"{ADAPTERS}{name}": module for name, module in found.items()}


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
