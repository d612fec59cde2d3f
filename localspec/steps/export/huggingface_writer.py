"""Write a torch model as a Hugging Face folder: safetensors, config, tokenizer and chat template."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from localspec.errors import UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import architecture

BESIDE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
LLAMA3 = {  # how Llama 3.1 and 3.2 stretch their positions; their factors are 8 and 32
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FACTORS = (8.0, 32.0)
ROUNDED = 1e-4  # what frequencies may be off by float32's rounding


def save(model: Any, path: Path, about: Path, into: Path) -> None:
    """Write `model`, made of the GGUF or folder `path`, in float16 into the folder `into`.

    `about` is the folder of its tokenizer and template. Raises UnsupportedModel for a GGUF that stretches its
    positions in a way that a config has no words for.
    """
    if path.is_file() and (scaling := _scaling(GgufFile.open(path))):
        model.config.rope_scaling = scaling
    model.half().save_pretrained(into, safe_serialization=True)
    for name in BESIDE:
        if (about / name).is_file():
            shutil.copyfile(about / name, into / name)


def _scaling(file: GgufFile) -> dict[str, Any] | None:
    """Return in a config's words how a GGUF stretches its positions, None when it does not."""
    if "rope_freqs.weight" not in file.tensors:
        return None
    shape = architecture.of_gguf(file)
    base = float(file.value("rope.freq_base", 10000.0))
    for factor in FACTORS:
        words = LLAMA3 | {"factor": factor}
        rates = architecture.scaled(architecture.frequencies(base, shape.head_width), words, str(file.path))
        if np.allclose(rates, shape.frequencies, rtol=ROUNDED):
            return words
    raise UnsupportedModel(
        f"`{file.path}` stretches its positions by factors that a config has no words for",
        "Export it to openvino or gguf",
    )
