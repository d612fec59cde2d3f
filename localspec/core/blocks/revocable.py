"""Samplers that take tokens back: a pass proposes new tokens and judges earlier ones by their shadows."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from localspec.core.blocks import visibility
from localspec.core.blocks.canvas import Canvas, shares
from localspec.core.blocks.quota import ranked
from localspec.core.blocks.types import Block, BlockPass, Candidates, Places
from localspec.core.types import Logits

SHARE, LEAST, MOST = 0.7, 5, 20  # of the masks: how many tokens a pass reveals at most
FIRST = 30  # tokens that the first pass with a choice may take back, and one less


class Guide(Protocol):
    """Steers the passes of a revocable sampler."""

    def offsets(self, canvas: Canvas) -> Logits | None:
        """Return what is added to the embeddings [length, width] of the block, None for nothing."""

    def learn(self, canvas: Canvas, candidates: Candidates) -> None:
        """Learn from a pass, before tokens are revealed or taken back."""

    def kept(self, place: int) -> bool:
        """Return whether the token at a place is never taken back."""


class Thresholds(NamedTuple):
    """The confidence above which a token is written, and that below which its shadow takes it back."""

    write: float
    keep: float


def fill(canvas: Canvas, thresholds: Thresholds, guide: Guide | None = None) -> None:
    """Fill in a block with tokens that later passes may take back ("WINO", arXiv 2507.18578).

    Each pass writes the masks whose confidence is above a threshold, one at least, and takes back earlier
    tokens that their shadows do not confirm; fewer than the last pass with a choice wrote, so that it ends.
    After twice as many passes as tokens the rest is written at once.
    """
    length, last = len(canvas.tokens), FIRST
    while canvas.open:
        found, candidates = _read(canvas, guide)
        masked = set(canvas.masked)
        doubts = _doubts(
            canvas, found, [place for place in range(canvas.given, length) if place not in masked]
        )
        if guide:
            guide.learn(canvas, candidates)
        if canvas.passes >= 2 * length:
            canvas.chosen_of(candidates, np.arange(len(candidates.places)))
            return
        picked = _picked(candidates, thresholds.write)
        canvas.chosen_of(candidates, picked)
        if len(picked) > 1:
            doubted = [
                place
                for place, shown in doubts.items()
                if shown < thresholds.keep and not (guide and guide.kept(place))
            ]
            canvas.conceal(sorted(doubted, key=lambda place: doubts[place])[: last - 1])
            last = len(picked)


def _read(canvas: Canvas, guide: Guide | None) -> tuple[BlockPass, Candidates]:
    """Return a pass over the block and its shadow, and what it says of the masks."""
    length = len(canvas.tokens)
    offsets = guide.offsets(canvas) if guide else None
    if offsets is not None:
        offsets = np.concatenate([offsets, np.zeros_like(offsets)])
    tokens = [*canvas.tokens, *[canvas.session.mask] * length]
    block = Block(tokens, canvas.positions * 2, visibility.shadow(length), length, offsets)
    found = canvas.read(block)
    return found, canvas.judged(found, canvas.masked)


def _doubts(canvas: Canvas, found: BlockPass, places: list[int]) -> dict[int, float]:
    """Return the probability that the shadow of each place gives to the token there."""
    if not places:
        return {}
    logits = canvas.writable(found.logits[[len(canvas.tokens) + place for place in places]])
    tokens = np.array([canvas.tokens[place] for place in places], np.int64)
    return dict(zip(places, shares(logits, tokens).tolist(), strict=True))


def _picked(candidates: Candidates, threshold: float) -> Places:
    """Return the indices of the candidates to write."""
    confidence = candidates.confidence
    most = min(max(int(SHARE * len(confidence)), LEAST), MOST)
    count = int((confidence > threshold).sum())
    return ranked(confidence)[: min(max(count, 1), most)]
