"""Anchors of a block: tokens that stay the same, and what they do to the embeddings of the others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.types import Candidates
from localspec.core.types import Logits

WINDOW = 32  # tokens of the text before the block that are anchors
SURE = 0.9  # confidence of a written token that may become an anchor
MOST = 64  # anchors, of which the least confident go
REACH = 16.0  # positions over which an anchor pulls


class Strengths(NamedTuple):
    """How strongly anchors pull, how strong the noise is, the passes that make an anchor, and the seed."""

    guide: float
    noise: float
    stable: int
    seed: int


class Anchors:
    """Guides the passes over one block."""

    def __init__(self, canvas: Canvas, strengths: Strengths) -> None:
        self._strengths = strengths
        self._dice = np.random.default_rng([strengths.seed, canvas.first])
        length = len(canvas.tokens)
        self._passes = [0] * length  # since a token was written at each place
        self._confidence = np.zeros(length)  # of the token at each place when it was written
        self._uncertainty = np.zeros(
            length
        )  # entropy of each mask in the last pass, by that of a uniform law
        self._anchors: set[int] = set()

    def offsets(self, canvas: Canvas) -> Logits | None:
        """Return what pulls masks towards anchors, and the noise on written tokens that are none."""
        guide, noise, _, _ = self._strengths
        if not guide and not noise:
            return None
        embedded = canvas.session.embeddings(canvas.tokens).astype(np.float64)
        found = np.zeros_like(embedded)
        masked = set(canvas.masked)
        for place in masked:
            found[place] = guide * self._pull(canvas, place, embedded[place])
        for place in range(canvas.given, len(canvas.tokens)):
            if place not in masked and place not in self._anchors:
                found[place] = noise * self._across(embedded[place])
        return found.astype(np.float32)

    def learn(self, canvas: Canvas, candidates: Candidates) -> None:
        """Note how sure the model is of each mask, and choose the anchors of the next pass."""
        self._uncertainty[:] = 0.0
        self._uncertainty[candidates.places] = candidates.entropy / np.log(canvas.vocab)
        self._confidence[candidates.places] = candidates.confidence
        masked = set(candidates.places.tolist())
        written = [place for place in range(canvas.given, len(canvas.tokens)) if place not in masked]
        self._passes = [count + 1 if at in written else 0 for at, count in enumerate(self._passes)]
        stable = self._strengths.stable or len(self._passes) * 2 + 1  # more passes than a block has
        able = [
            place for place in written if self._passes[place] >= stable and self._confidence[place] >= SURE
        ]
        self._anchors = set(sorted(able, key=lambda place: -self._confidence[place])[:MOST])

    def kept(self, place: int) -> bool:
        """Return whether a place holds an anchor."""
        return place in self._anchors

    def _pull(self, canvas: Canvas, place: int, mask: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean embedding of anchors, as long as the mask's times its uncertainty."""
        near = canvas.text_before(WINDOW) if self._strengths.stable else []
        places = [*range(-len(near), 0), *sorted(self._anchors)]
        tokens = [*near, *(canvas.tokens[each] for each in sorted(self._anchors))]
        if not tokens:
            return np.zeros_like(mask)
        weights = np.exp(-np.abs(np.array(places) - place) / REACH)
        mean = (weights / weights.sum()) @ canvas.session.embeddings(tokens).astype(np.float64)
        size = np.linalg.norm(mean)
        found: NDArray[np.float64] = (
            self._uncertainty[place] * mean * (np.linalg.norm(mask) / size if size else 0.0)
        )
        return found

    def _across(self, embedded: NDArray[np.float64]) -> NDArray[np.float64]:
        """Draw a vector as long as an embedding and orthogonal to it."""
        drawn = self._dice.normal(size=embedded.shape)
        size = embedded @ embedded
        drawn -= (drawn @ embedded) / size * embedded if size else 0.0
        found: NDArray[np.float64] = drawn * (np.sqrt(size) / max(np.linalg.norm(drawn), 1e-12))
        return found
