"""Save and load the layers of a healed draft."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel
from localspec.formats.huggingface.loading import first_line

FILE = "healed.safetensors"
LAYERS = ".layers."


def save(model: Any, layers: Sequence[int] | None, folder: Path) -> None:
    """Write the layers of `model` in float16 into `folder`, for a later export.

    `layers` are their numbers in the source model, None for all.
    """
    from safetensors.torch import save_file

    tensors = {
        name: value.half().cpu().contiguous() for name, value in model.state_dict().items() if LAYERS in name
    }
    save_file(tensors, folder / FILE, {"layers": json.dumps(layers)})


def load(model: Any, layers: Sequence[int] | None, file: Path) -> None:
    """Load what `save` wrote into `model`; raises BrokenModel unless it has the same `layers`."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    expected = None if layers is None else list(layers)
    try:
        with safe_open(file, "pt") as opened:
            saved = json.loads((opened.metadata() or {}).get("layers", "0"))
        if saved != expected:
            raise BrokenModel(f"`{file}` holds the layers {saved}, expected {expected}")
        keys = model.load_state_dict(load_file(file), strict=False)
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise BrokenModel(f"`{file}` cannot be read: {first_line(error)}") from None
    missing = [name for name in keys.missing_keys if LAYERS in name]
    if missing or keys.unexpected_keys:
        raise BrokenModel(f"`{file}` is from another model")
