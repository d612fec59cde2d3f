"""A transformers model without some of its attentions and MLPs, over the same weights."""

from __future__ import annotations

import functools
from typing import Any

from localspec.drafting import skip_mask
from localspec.formats.huggingface.early_exit import shallow, with_modules


def without(model: Any, skipped: str) -> Any:
    """Return `model` without sub-blocks such as `a4-6+m5`; None for a family that is built otherwise.

    A layer without both is left out; where layers are of several types, transformers counts them, so it stays
    and adds nothing. Whether a family supports it must be tried. Raises BadValue for a mask that the model
    cannot have.
    """
    import torch

    mask, layers = skip_mask.parse(skipped), getattr(model.base_model, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        return None
    if not all(hasattr(layer, "self_attn") and hasattr(layer, "mlp") for layer in layers):
        return None
    mask.check(len(layers))
    alike = len(set(getattr(model.config, "layer_types", None) or ())) <= 1
    whole = mask.attention & mask.mlp if alike else frozenset()
    left = [
        _silenced(layer, attention=at in mask.attention, mlp=at in mask.mlp)
        for at, layer in enumerate(layers)
        if at not in whole
    ]
    return with_modules(model, layers=torch.nn.ModuleList(left))


def _silenced(layer: Any, *, attention: bool, mlp: bool) -> Any:
    """Return a layer whose sub-blocks add nothing to the hidden states."""
    if not (attention or mlp):
        return layer
    no_attention, no_mlp = _silent()
    silenced = shallow(layer)
    silenced._modules |= {"self_attn": no_attention} if attention else {}
    silenced._modules |= {"mlp": no_mlp} if mlp else {}
    return silenced


@functools.cache
def _silent() -> tuple[Any, Any]:
    """Return an attention and an MLP that give zeros."""
    import torch

    class NoAttention(torch.nn.Module):  # type: ignore[misc]
        def forward(self, hidden_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, None]:
            return torch.zeros_like(hidden_states), None

    class NoMlp(torch.nn.Module):  # type: ignore[misc]
        def forward(self, hidden_states: Any) -> Any:
            return torch.zeros_like(hidden_states)

    return NoAttention(), NoMlp()
