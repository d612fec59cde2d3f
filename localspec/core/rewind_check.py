"""Checks of a session by use: its rewinds are exact, and no pass width changes its logits."""

from __future__ import annotations

import numpy as np

from localspec.core.contracts import Session

# Of the logits' spread: more than the order of a sum changes, far less than a stale token does.
TOLERANCE = 0.02
KEPT, GUESSED = 12, 4  # tokens
BEFORE, READ = 8, 16  # tokens before and in the passes whose widths are compared
PASSES = {8: 2, 5: 2, 3: 3, 2: 4, 1: 5}  # width -> passes to compare with one over all tokens


def rewind_fault(session: Session, vocab: int, kept: int = KEPT) -> str | None:
    """Return why `session` cannot take rejected guesses back, or None if it can; it is empty afterwards.

    Reads `kept` tokens and two more, rewinds to `kept`, reads other tokens and takes them back, twice; then
    reads the first two again and compares their logits.
    """
    text = [(7 * at + 3) % vocab for at in range(kept + 2)]
    others = [(11 * at + 5) % vocab for at in range(GUESSED)]
    session.rewind(0)
    session.forward(text[:kept], 0)
    expected = session.forward(text[kept:], 2).copy()
    for guesses in (others, others[::-1]):
        held = session.rewind(kept)
        if held == 0:
            return "its state cannot be rewound"
        session.forward(text[held:kept], 0)  # the session went back to an older checkpoint
        session.forward(guesses, 1)
    session.forward(text[session.rewind(kept) : kept], 0)
    logits = session.forward(text[kept:], 2)
    gap = float(np.abs(logits - expected).max() / max(float(expected.std()), 1e-6))
    session.rewind(0)
    return None if gap <= TOLERANCE else f"a rewind changes its logits by {gap:.2g} of their spread"


def width_fault(session: Session, vocab: int) -> str | None:
    """Return how the logits depend on the width of a pass, None if they are equal to the bit.

    Where they are, drafted text equals plain text without any near tie. The session is empty afterwards.
    """
    text = [(7 * at + 3) % vocab for at in range(BEFORE + READ)]
    session.rewind(0)
    session.forward(text[:BEFORE], 0)
    expected = session.forward(text[BEFORE:], READ).copy()
    gaps: dict[int, float] = {}
    for width, passes in PASSES.items():
        held = session.rewind(BEFORE)
        session.forward(text[held:BEFORE], 0)
        for at in range(0, width * passes, width):
            logits = session.forward(text[BEFORE + at : BEFORE + at + width], width)
            gap = float(np.abs(logits - expected[at : at + width]).max())
            gaps[width] = max(gap, gaps.get(width, 0.0))
    session.rewind(0)
    widest = max(gaps, key=lambda width: gaps[width])
    return f"a pass over {widest} changes logits by {gaps[widest]:.2g}" if gaps[widest] else None
