"""Reads a text in passes of given widths, and writes tokens as text."""

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


def check_rewinds(session: Session, text: Sequence[int], expected: Logits, near: float) -> None:
    """Read and rewind at random: all logits are those `expected` [tokens, vocab] of the whole text."""
    numbers, held = np.random.default_rng(1), 0
    for _ in range(60):
        size = min(int(numbers.choice([1, 1, 2, 5, 11, 16, 17, 40])), len(text) - held)
        rows = session.forward(text[held : held + size], size)
        assert np.abs(rows - expected[held : held + size]).max(initial=0) < near
        held += size
        session.forward([5, 6, 7][: 256 - held], 1)
        back = int(numbers.integers(max(0, held - 30), held + 1))
        assert session.rewind(back) == back
        held = back


class Numbers:
    """Text of toy tokens: their numbers, each followed by a dot."""

    def push(self, token: int) -> str:
        return f"{token}."

    def flush(self) -> str:
        return ""
