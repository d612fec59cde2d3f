"""Products and norms in torch for weights that are trained in float32 beside a model in half precision."""

from __future__ import annotations

from typing import Any

Tensor = Any  # torch.Tensor


def product(x: Tensor, weight: Tensor) -> Tensor:
    """Return W x [..., rows] of x [..., columns], in the weight's precision unless autocast chooses."""
    import torch

    if not torch.is_autocast_enabled(x.device.type):
        x = x.to(weight.dtype)
    return torch.nn.functional.linear(x, weight)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + epsilon) * weight, in float32 inside (Zhang and Sennrich 2019)."""
    wide = x.float()
    unit = wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (unit * weight.float()).to(x.dtype)
