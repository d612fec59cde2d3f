"""Which models a decoder of our own reads, and its weights: those of transformers' modules."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from localspec.engines.torch.decoder.forward import Decoder
from localspec.engines.torch.decoder.weights import ModuleTensors, Weights, read
from localspec.errors import UnsupportedModel
from localspec.formats.graph.architecture import of_path

_joined: WeakKeyDictionary[Any, Weights] = WeakKeyDictionary()
_joining = threading.Lock()


def of_model(model: Any, path: Path, context: int) -> Decoder:
    """Return a decoder over the weights of a transformers model, which goes on working with them.

    Raises UnsupportedModel for a family that the decoder does not compute, and for texts that it reads only
    up to a part of the model's context.
    """
    import torch

    shape = of_path(path)
    if shape.context < context:
        raise UnsupportedModel(f"`{path}` changes its positions after {shape.context} tokens")
    with _joining, torch.inference_mode(False):
        if model not in _joined:
            _joined[model] = read(shape, ModuleTensors(model))
    return Decoder(_joined[model])
