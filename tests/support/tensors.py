"""Writes safetensors files, without that library."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = {"float32": "F32", "float16": "F16"}


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors in float32 or float16."""
    header, data = {}, b""
    for name, values in tensors.items():
        content = np.ascontiguousarray(values).tobytes()
        place = [len(data), len(data) + len(content)]
        header[name] = {
            "dtype": KINDS[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": place,
        }
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
