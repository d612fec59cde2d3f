"""Adapters (LoRA, Hu et al. 2021) for the linear maps in the layers of a frozen transformers model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from localspec.errors import UnsupportedModel
from localspec.formats.graph.weights import hf_name
from localspec.formats.huggingface.products import product

Tensor = Any  # torch.Tensor

LAYERS, DOWN, UP = "layers.", ".down", ".up"  # of the names of an adapter's matrices


class Adapters:
    """Adapters of some `rank` over their `weights` by name: y = W x + up down x for each linear map.

    Raises UnsupportedModel for weights of another model than `model`; `whose` they are and the `command` that
    trains others are for its message.
    """

    def __init__(
        self, rank: int, weights: Mapping[str, Tensor], model: Any, *, whose: str, command: str
    ) -> None:
        self._weights, self._model = weights, model
        self._modules = linear_layers(model)
        for name, module in self._modules.items():
            down, up = (weights.get(f"{name}{part}") for part in (DOWN, UP))
            sizes = (rank, module.in_features), (module.out_features, rank)
            if down is None or up is None or (tuple(down.shape), tuple(up.shape)) != sizes:
                raise UnsupportedModel(
                    f"The {whose} have no adapter for `{name}` of this model",
                    f"Train some for it: `{command}`",
                )

    @contextmanager
    def reading(self, first: int = 0) -> Iterator[None]:
        """Let the passes of this thread read the tokens from `first` on with the adapters."""
        owner = threading.get_ident()

        def adapter(name: str) -> Any:
            def add(module: Any, given: Any, output: Any) -> Any:
                import torch

                if threading.get_ident() != owner or first >= output.shape[-2]:
                    return None
                x = given[0][..., first:, :]
                down, up = (self._weights[f"{name}{part}"] for part in (DOWN, UP))
                added = product(product(x, down), up).to(output.dtype)
                if not first:
                    return output + added
                return torch.cat([output[..., :first, :], output[..., first:, :] + added], -2)

            return add

        handles = [module.register_forward_hook(adapter(name)) for name, module in self._modules.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def merged(self) -> Any:
        """Return the model with W + up down in copies of its layers; it shares both embeddings."""
        import torch

        shared = self._model.get_input_embeddings(), self._model.get_output_embeddings()
        found = copy.deepcopy(self._model, {id(module): module for module in shared})
        with torch.no_grad():
            for name, module in linear_layers(found).items():
                up, down = (self._weights[f"{name}{part}"].float() for part in (UP, DOWN))
                module.weight.copy_(module.weight.float() + up @ down)
        return found


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
    return {f"{LAYERS}{name}": module for name, module in found.items()}


def adapter_of(tensors: Mapping[str, Any], name: str) -> tuple[Any, Any]:
    """Return the matrices down [rank, columns] and up [rows, rank] for one that the graph's builder names.

    Raises UnsupportedModel for a matrix that has no adapter of its own, such as a part of a joined one.
    """
    own = hf_name(f"{name}.weight").removeprefix("model.").removesuffix(".weight")
    down, up = (tensors.get(f"{own}{part}") for part in (DOWN, UP))
    if down is None or up is None:
        raise UnsupportedModel(f"`{own}` has no adapter of its own", "Run it with `--engine torch`")
    return down, up


def first_adapters(model: Any, rank: int, generator: Any) -> dict[str, Tensor]:
    """Return new adapters, which add nothing yet, in float32 in main memory."""
    import torch

    found = {}
    for name, module in linear_layers(model).items():
        drawn = torch.randn(rank, module.in_features, generator=generator)
        found[f"{name}{DOWN}"] = drawn * module.in_features**-0.5
        found[f"{name}{UP}"] = torch.zeros(module.out_features, rank)
    return found
