"""Split a transformers model after some of its layers."""

from __future__ import annotations

from copy import copy
from typing import Any

from localspec.errors import no_such_layer
from localspec.formats.graph.layer_split import Parts


def split(model: Any, layer: int) -> Parts | None:
    """Return the parts of `model`, split after `layer` layers; None for a family without a list of layers.

    The parts share the weights of `model`. The first two end before the last norm; the second and third take
    the output of the part before as `inputs_embeds`. Whether a family supports that must be tried. Raises
    BadValue if there is no such layer.
    """
    import torch

    layers, norm = getattr(model.base_model, "layers", None), getattr(model.base_model, "norm", None)
    if not isinstance(layers, torch.nn.ModuleList) or norm is None:
        return None
    if layer >= len(layers):
        raise no_such_layer(layer, len(layers))
    no_norm = torch.nn.Identity()
    return Parts(
        with_modules(model, layers=layers[:layer], norm=no_norm),
        with_modules(model, layers=layers[layer:], norm=no_norm),
        with_modules(model, layers=layers[:0]),
    )


def with_modules(model: Any, **modules: Any) -> Any:
    """Return a copy of a model with other `modules` in its body, which shares everything else."""
    body = shallow(model.base_model)
    body._modules |= modules
    changed = shallow(model)
    changed._modules[model.base_model_prefix] = body
    return changed


def shallow(module: Any) -> Any:
    """Return a copy of a module whose own modules may be exchanged; it shares everything else."""
    copied = copy(module)
    copied._modules = dict(module._modules)
    return copied
