"""Readers of pictures, and of what a folder says about them, with their inputs."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from random_models import tiny_vision

from localspec import pictures
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.vision import config, pixels

KINDS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
SIZES = [(4, 9), (30, 8)]
QWEN = {
    "model_type": "qwen2_5_vl",
    "image_token_id": 40,
    "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    "hidden_size": 32,
    "num_hidden_layers": 2,
}
LLAVA = {"model_type": "llava", "image_token_index": 40, "text_config": {"model_type": "mistral"}}


def files(folder: Path) -> list[bytes]:
    """Return a small picture in each format, upright or on its side."""
    found = []
    for kind in KINDS:
        exif, into = Image.Exif(), io.BytesIO()
        exif[0x0112] = 6
        with_exif: dict[str, Any] = {"exif": exif} if kind in ("PNG", "JPEG", "WEBP") else {}
        Image.fromarray(tiny_vision.picture(12, 9).pixels).save(into, kind, **with_exif)
        found.append(into.getvalue())
    return found


def read_picture(folder: Path, data: bytes) -> None:
    """Read a picture; one that is read has three colours."""
    found = pictures.of_bytes(data, "case").pixels
    assert found.ndim == 3
    assert found.shape[2] == 3


def read_pixels(folder: Path, data: bytes) -> None:
    """Read a preprocessor, and prepare small pictures with it."""
    (folder / pixels.FILES[0]).write_bytes(data)
    family = config.QWEN if b"Qwen" in data else config.LLAVA
    how = pixels.read(folder, family, 4)
    if how.side > 500 or how.patch * how.merge > 500 or how.least > 500_000:
        return  # it may be as it says, and takes long
    for height, width in SIZES:
        picture = np.full((height, width, 3), 7, np.uint8)
        if family == config.LLAVA:
            assert pixels.square(picture, how).shape == (3, how.side, how.side)
        else:
            flat, (rows, columns) = pixels.patches(picture, how)
            assert len(flat) == rows * columns


def read_shape(folder: Path, data: bytes) -> None:
    """Read how a model reads pictures, and its text part."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(values, dict):
        source = SafetensorsFolder(folder, values, {})
        shape = config.read(source)
        inner = values.get("text_config")
        config.text_part(source, inner if isinstance(inner, dict) else values)
        if shape.tower:
            config.language_model(source)
