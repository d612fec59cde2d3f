"""Numbers of the main memory that a device gets without anyone waiting for it."""

from __future__ import annotations

from typing import Any

from localspec.decoder.weights import Tensor


def sent(values: Any, place: Any) -> Tensor:
    """Return numbers, in lists or of NumPy, as a tensor on a device that gets them after other work."""
    import torch

    here = torch.as_tensor(values)
    return here.pin_memory().to(place, non_blocking=True) if place.type == "cuda" else here.to(place)
