"""The description of a tensor in a weight file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's shape and type, and the place of its bytes in the file."""

    name: str
    shape: tuple[int, ...]  # rows first, as in numpy
    kind: str  # "F32", "BF16", "Q4_K" ...
    offset: int  # bytes from the start of the file
    size: int  # bytes
