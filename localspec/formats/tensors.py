"""What a weight file says about one of its tensors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: where its bytes lie and how they are to be read."""

    name: str
    shape: tuple[int, ...]  # rows first, as numpy has it
    kind: str  # "F32", "BF16", "Q4_K" ...
    offset: int  # bytes from the start of the file
    size: int  # bytes
