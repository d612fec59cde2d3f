"""Open the weights of a model, whichever of both formats they are in."""

from __future__ import annotations

import math
from pathlib import Path

from localspec.formats.gguf.file import GgufFile
from localspec.formats.huggingface.safetensors import SafetensorsFolder


def open_weights(path: Path) -> GgufFile | SafetensorsFolder:
    """Open a Hugging Face folder or a GGUF file; raises BrokenModel and UnsupportedModel."""
    return SafetensorsFolder.open(path) if path.is_dir() else GgufFile.open(path)


def count_parameters(path: Path) -> int:
    """Return the number of values in a model's tensors, from the headers of its files."""
    return sum(math.prod(info.shape) for info in open_weights(path).tensors.values())
