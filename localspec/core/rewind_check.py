"""Does a rewind keep what it says? Found out by really rewinding, not by what a model calls itself."""

from __future__ import annotations

import numpy as np

from localspec.core.contracts import Session

TOLERANCE = (
    0.02  # of a row's spread: what the order of a sum may change, and far below what a stale token does
)
KEPT, GUESSED = 12, 4  # tokens


def rewind_fault(session: Session, vocab: int, kept: int = KEPT) -> str | None:
    """Return why rejected guesses cannot be taken back in `session`, None when they can; it is empty after.

    `kept` tokens are read and two more; then all but the `kept` are taken back, others are read and taken
    back in their turn, and the rows of the first two are compared.
    """
    text = [(7 * at + 3) % vocab for at in range(kept + 2)]
    others = [(11 * at + 5) % vocab for at in range(GUESSED)]
    session.rewind(0)
    session.forward(text[:kept], 0)
    expected = session.forward(text[kept:], 2).copy()
    for guesses in (others, others[::-1]):
        held = session.rewind(kept)
        if held == 0:
            return "its state cannot be taken back"
        session.forward(text[held:kept], 0)  # an older checkpoint: what is missing is read again
        session.forward(guesses, 1)
    session.forward(text[session.rewind(kept) : kept], 0)
    found = session.forward(text[kept:], 2)
    gap = float(np.abs(found - expected).max() / max(float(expected.std()), 1e-6))
    session.rewind(0)
    return None if gap <= TOLERANCE else f"a rewind leaves a trace: rows differ by {gap:.2g} of their spread"
