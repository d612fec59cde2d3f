"""Write a torch model as a Hugging Face folder: safetensors, config, tokenizer and chat template."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from localspec.errors import UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import architecture
from localspec.formats.graph.rope import rope_of

CONFIGS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)
LLAMA3 = {  # the RoPE scaling of Llama 3.1 and 3.2, with the factors 8 and 32
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FACTORS = (8.0, 32.0)
TOLERANCE = 1e-4  # of frequencies, for float32's rounding


def save(model: Any, path: Path, configs: Path, into: Path) -> None:
    """Write `model`, loaded from the GGUF or folder `path`, in float16 into the folder `into`.

    `configs` is the folder of its tokenizer and chat template. Raises UnsupportedModel for a GGUF whose RoPE
    scaling a config.json cannot express.
    """
    if path.is_file() and (scaling := _scaling(GgufFile.open(path))):
        model.config.rope_scaling = scaling
    model.half().save_pretrained(into, safe_serialization=True)
    for name in CONFIGS:
        if (configs / name).is_file():
            shutil.copyfile(configs / name, into / name)


def _scaling(file: GgufFile) -> dict[str, Any] | None:
    """Return the `rope_scaling` of a GGUF for config.json, None if it has none."""
    shape, config = architecture.of_gguf(file), architecture.rope_config(file)
    own: dict[str, Any] | None = config["rope_scaling"]
    for scaling in (own, *(LLAMA3 | {"factor": factor} for factor in FACTORS)):
        rope = rope_of(config | {"rope_scaling": scaling}, shape.head_width, shape.context, str(file.path))
        same = np.allclose(rope.frequencies, shape.frequencies, rtol=TOLERANCE)
        if same and abs(rope.scale / shape.rope_scale - 1) < TOLERANCE:
            return scaling
    raise UnsupportedModel(
        f"`{file.path}` uses a RoPE scaling that a config.json cannot express",
        "Export it to openvino or gguf",
    )
