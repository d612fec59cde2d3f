"""The gain of a built model over the one it was built for, read from its card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.formats.files import weight_files
from localspec.library import StoredModel, storage
from localspec.library.model import GRAPH


def no_gain(card: Mapping[str, Any]) -> str | None:
    """Return why a draft does not make its target faster, None if it does.

    A speed-up that was measured outweighs the predicted one; it is measured only where one is predicted.
    """
    measured, predicted = card.get("measured"), card["predicted"]
    if measured is not None:
        speedup = float(measured["speedup"])
        return None if speedup > 1 else f"it was measured at {speedup:.2f} times the speed of plain decoding"
    if predicted["draft_length"] and predicted["speedup"] > 1:
        return None
    return (
        f"its passes take {card['cost_ratio']:.0%} of the time of the target's, too long for"
        f" {card['agreement']:.0%} agreement"
    )


def weight_bytes(model: StoredModel) -> int:
    """Return the bytes of a model's weights in the first format that exports start from, 0 without any."""
    if file := model.files_in("gguf"):
        return storage.size_of(file)
    if folder := model.files_in("safetensors"):
        return sum(path.stat().st_size for path in weight_files(folder))
    return graph_bytes(model)


def graph_bytes(model: StoredModel) -> int:
    """Return the bytes of the weights of a model's OpenVINO graph, 0 without one."""
    folder = model.files_in("openvino")
    return storage.size_of((folder / GRAPH).with_suffix(".bin")) if folder else 0
