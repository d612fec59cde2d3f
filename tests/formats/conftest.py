"""GGUF files made by hand, byte by byte, and the real SmolLM2."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import models

Tensor = tuple[str, tuple[int, ...], int, bytes]  # name, shape (rows last, as stored), type, data


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind: str, found: Any) -> bytes:
    """Write one value; `kind` is a `struct` letter, `s` for text, or two letters for a list."""
    numbers = {letter: number for number, letter in enumerate("BbHhIif?s")} | {"Q": 10, "q": 11, "d": 12}
    if len(kind) == 2:
        items = b"".join(text(item) if kind[1] == "s" else struct.pack("<" + kind[1], item) for item in found)
        return struct.pack("<IIQ", 9, numbers[kind[1]], len(found)) + items
    return struct.pack("<I", numbers[kind]) + (text(found) if kind == "s" else struct.pack("<" + kind, found))


def write_gguf(
    path: Path, metadata: dict[str, tuple[str, Any]], tensors: tuple[Tensor, ...] = (), version: int = 3
) -> Path:
    """Write a GGUF file without validating it."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    header += b"".join(text(key) + value(*found) for key, found in metadata.items())
    data = b""
    for name, shape, kind, content in tensors:
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        data += content + bytes(-len(content) % 32)
    path.write_bytes(header + bytes(-len(header) % 32) + data)
    return path


@pytest.fixture
def write() -> Callable[..., Path]:
    return write_gguf


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The real SmolLM2-135M as GGUF."""
    return models.smollm2_gguf()
