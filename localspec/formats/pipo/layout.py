"""The files of PIPO: what turns a model into one that reads pairs of tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel
from localspec.formats.files import read_json
from localspec.formats.heads.layout import HeadShape, config_of
from localspec.formats.heads.layout import read_shape as read_head_shape
from localspec.formats.huggingface.safetensors import SafetensorsFolder, write_file
from localspec.formats.values import MAX_LAYERS, Values, whole

Tensor = NDArray[np.float32]

CONFIG = "config.json"
MODEL_TYPE = "pipo"
ABOUT = "about"  # key of what localspec notes in a config.json
HEAD, LM_HEAD = "head.", "lm_head.weight"  # the head's names begin so; its vocabulary's rows are the target's
SHARD = 12_000_000  # bytes of weights in a file


@dataclass(frozen=True, eq=False)
class PairShape:
    """The hyperparameters of PIPO for a target of `layers` layers, with adapters of some `rank`.

    `head` tells the second token of a pair: a layer over [norm(embedding); norm(state)], whose sizes are the
    target's own.
    """

    head: HeadShape
    layers: int
    rank: int

    @property
    def width(self) -> int:
        """The columns of the target's states, and of a pair's latent."""
        return self.head.width

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor but those of the adapters."""
        width = self.width
        head = {f"{HEAD}{name}": size for name, size in self.head.tensors().items() if name != LM_HEAD}
        return head | {
            "compressor.first": (2 * width, 2 * width),
            "compressor.second": (width, 2 * width),
            "pad": (width,),
            "start": (width,),
            "norms.token": (width,),
            "norms.state": (width,),
            "confidence.norm": (2 * width,),
            "confidence.first": (width, 2 * width),
            "confidence.second": (1, width),
            "confidence.bias": (1,),
        }


@dataclass(frozen=True, eq=False)
class StoredPairs:
    """PIPO's weights as they lie in a folder: their shape, their tensors, and what localspec noted."""

    shape: PairShape
    tensors: dict[str, Tensor]
    about: dict[str, Any] = field(default_factory=dict)


def is_pairs(folder: Path) -> bool:
    """Return whether a folder holds PIPO's weights by its config.json."""
    file = folder / CONFIG
    return file.is_file() and read_json(file).get("model_type") == MODEL_TYPE


def read_shape(folder: Path) -> PairShape:
    """Read the hyperparameters in a folder; raises BrokenModel and UnsupportedModel for wrong ones."""
    head = read_head_shape(folder)
    source = Values(folder / CONFIG, read_json(folder / CONFIG))
    if (head.tapped_width, head.kept) != (2 * head.width, head.vocab):
        raise BrokenModel(f"The head of `{folder}` reads no pairs of a token and a state", "Train it again")
    layers = whole(source, "layers", most=MAX_LAYERS)
    return PairShape(head, layers, whole(source, "rank"))


def noted(folder: Path) -> dict[str, Any]:
    """Return what localspec noted about the weights in a folder."""
    found = read_json(folder / CONFIG).get(ABOUT)
    return found if isinstance(found, dict) else {}


def read(folder: Path) -> StoredPairs:
    """Read the weights in a folder; raises BrokenModel for damaged files."""
    shape, opened = read_shape(folder), SafetensorsFolder.open(folder)
    tensors = {name: opened.array(name) for name in opened.tensors}
    for name, size in shape.tensors().items():
        if name not in tensors or tensors[name].shape != size:
            found = list(tensors[name].shape) if name in tensors else "missing"
            raise BrokenModel(f"`{name}` of `{folder}` is {found}, expected {list(size)}", "Train it again")
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise BrokenModel(f"`{name}` of `{folder}` holds numbers that are not finite", "Train it again")
    return StoredPairs(shape, tensors, noted(folder))


def write(pairs: StoredPairs, into: Path) -> None:
    """Write weights in float16 into a folder, in files of at most SHARD bytes."""
    shards: list[dict[str, NDArray[np.float16]]] = [{}]
    for name, values in pairs.tensors.items():
        half = values.astype(np.float16)
        if shards[-1] and sum(value.nbytes for value in shards[-1].values()) + half.nbytes > SHARD:
            shards.append({})
        shards[-1][name] = half
    for number, shard in enumerate(shards, 1):
        write_file(into / f"model-{number:05}.safetensors", shard)
    shape = pairs.shape
    config = config_of(shape.head) | {"layers": shape.layers, "rank": shape.rank}
    config |= {"model_type": MODEL_TYPE, ABOUT: pairs.about}
    (into / CONFIG).write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n", "utf-8")
