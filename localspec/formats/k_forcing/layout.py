"""The files of K-Forcing's hints: a noise encoder and adapters for the layers of their target."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel
from localspec.formats.files import read_json
from localspec.formats.huggingface.safetensors import SafetensorsFolder, write_file
from localspec.formats.values import MAX_LAYERS, MAX_TOKENS, Values, whole

Tensor = NDArray[np.float32]

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MODEL_TYPE = "k-forcing"
ABOUT = "about"  # key of what localspec notes in a config.json
MOST = 16  # tokens a pass
OCTAVES, WARMTHS = 16, 4  # frequencies of the noise, and of the temperature
FEATURES = 2 * (OCTAVES + WARMTHS)


@dataclass(frozen=True)
class HintShape:
    """The hyperparameters of hints.

    With them a pass gives `k` tokens: the target's own and those of k - 1 hints. `width`, `layers` and
    `vocab` are the target's. `rank` is that of the adapters, `inner` the width inside the noise encoder.
    """

    k: int
    width: int
    layers: int
    vocab: int
    rank: int
    inner: int

    def encoder(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of the noise encoder."""
        return {
            "places": (self.k - 1, self.width),
            "encoder.first": (self.width, FEATURES),
            "encoder.inner": (self.inner, self.width),
            "encoder.outer": (self.width, self.inner),
        }


@dataclass(frozen=True, eq=False)
class StoredHints:
    """Hints as they lie in a folder: their shape, their tensors, and what localspec noted about them."""

    shape: HintShape
    tensors: dict[str, Tensor]
    about: dict[str, Any] = field(default_factory=dict)


def is_hints(folder: Path) -> bool:
    """Return whether a folder holds hints by its config.json."""
    file = folder / CONFIG
    return file.is_file() and read_json(file).get("model_type") == MODEL_TYPE


def read_shape(folder: Path) -> HintShape:
    """Read the hyperparameters of the hints in a folder; raises BrokenModel for wrong ones."""
    source = Values(folder / CONFIG, read_json(folder / CONFIG))
    shape = HintShape(
        k=whole(source, "k", most=MOST),
        width=whole(source, "width"),
        layers=whole(source, "layers", most=MAX_LAYERS),
        vocab=whole(source, "vocab", most=MAX_TOKENS),
        rank=whole(source, "rank"),
        inner=whole(source, "inner"),
    )
    if shape.k < 2:
        raise BrokenModel(f"`k` of `{folder / CONFIG}` is {shape.k}, expected 2 or more", "Train them again")
    return shape


def noted(folder: Path) -> dict[str, Any]:
    """Return what localspec noted about the hints in a folder."""
    found = read_json(folder / CONFIG).get(ABOUT)
    return found if isinstance(found, dict) else {}


def read(folder: Path) -> StoredHints:
    """Read the hints in a folder; raises BrokenModel for damaged files."""
    shape, opened = read_shape(folder), SafetensorsFolder.open(folder)
    tensors = {name: opened.array(name) for name in opened.tensors}
    for name, size in shape.encoder().items():
        if name not in tensors or tensors[name].shape != size:
            found = list(tensors[name].shape) if name in tensors else "missing"
            raise BrokenModel(
                f"`{name}` of `{folder}` is {found}, expected {list(size)}", "Train the hints again"
            )
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise BrokenModel(
                f"`{name}` of `{folder}` holds numbers that are not finite", "Train the hints again"
            )
    return StoredHints(shape, tensors, noted(folder))


def write(hints: StoredHints, into: Path) -> None:
    """Write hints in float16 into a folder."""
    shape = hints.shape
    write_file(into / WEIGHTS, {name: value.astype(np.float16) for name, value in hints.tensors.items()})
    config = {
        "model_type": MODEL_TYPE,
        "k": shape.k,
        "width": shape.width,
        "layers": shape.layers,
        "vocab": shape.vocab,
        "rank": shape.rank,
        "inner": shape.inner,
        ABOUT: hints.about,
    }
    (into / CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", "utf-8")
