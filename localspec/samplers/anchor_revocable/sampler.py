"""Revocable tokens that anchors guide and perturbed embeddings test, a reconstruction."""

from __future__ import annotations

from typing import Annotated, ClassVar

from localspec.core.blocks import revocable
from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.parts import BlockSampler
from localspec.plugins import Option
from localspec.samplers.anchor_revocable.anchors import Anchors, Strengths


class AnchorRevocable(BlockSampler):
    """Takes tokens back as `wino` does, guided by anchors and tested by noise: a reconstruction.

    Only the abstract of the method is known (Yao et al. 2026, "Follow the Latent Roadmap", arXiv 2606.16847):
    this follows it, and is not the authors' algorithm. Tokens that stay the same for some passes, and the end
    of the text before, are anchors; they pull uncertain masks, and are never taken back. With `guide=0`,
    `noise=0` and `stable=0` it is `wino`.
    """

    copies: ClassVar[bool] = True

    def __init__(
        self,
        *,
        write: Annotated[float, Option("confidence above which a token is written", least=0, most=1)] = 0.6,
        keep: Annotated[float, Option("confidence below which it is taken back", least=0, most=1)] = 0.9,
        guide: Annotated[float, Option("pull of anchors on uncertain masks", least=0, most=10)] = 0.1,
        noise: Annotated[float, Option("noise on written tokens, no anchors", least=0, most=10)] = 0.1,
        stable: Annotated[int, Option("passes to become an anchor, 0 for no anchors", least=0)] = 3,
        seed: Annotated[int, Option("seed of the noise", least=0, most=2**31)] = 0,
    ) -> None:
        self._thresholds = revocable.Thresholds(write, keep)
        self._strengths = Strengths(guide, noise, stable, seed)

    def fill(self, canvas: Canvas) -> None:
        """Fill in the block."""
        revocable.fill(canvas, self._thresholds, Anchors(canvas, self._strengths))
