"""Reads a text in passes of given widths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.core.contracts import Session
from localspec.core.types import Logits


def read(session: Session, tokens: Sequence[int], *widths: int) -> Logits:
    """Return the logits of all tokens, read in passes of these widths, the last one again and again."""
    found, at = [], 0
    for width in [*widths, *[widths[-1]] * len(tokens)]:
        part = tokens[at : at + width]
        if part:
            found.append(session.forward(part, len(part)).copy())
        at += width
    return np.concatenate(found)
