"""The contracts of block diffusion: samplers, which fill in blocks, and drafters that do it for a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

from localspec.core.blocks.canvas import Canvas
from localspec.core.contracts import Drafter
from localspec.errors import BadValue, UnsupportedModel


class BlockModel(Protocol):
    """A diffusion model's traits, which a BlockSession and the shape of the model both tell."""

    @property
    def mask(self) -> int:
        """The token that stands for an unknown one."""

    @property
    def block(self) -> int:
        """Tokens of a block."""

    @property
    def causal(self) -> bool:
        """Whether no token sees a later block."""

    @property
    def shifted(self) -> bool:
        """Whether a token is predicted at the place before it."""


class BlockSampler(ABC):
    """Decides which masks of a block become tokens in which pass.

    A sampler is made as `Sampler(**options)`. `copies` tells that it reads copies of tokens beside the block,
    which only a model can serve that predicts a token in its own place. `sequential` tells that it reveals
    one token a pass from left to right, the order in which drafts are checked exactly.
    """

    copies: ClassVar[bool] = False

    @property
    def sequential(self) -> bool:
        """Whether it reveals one token a pass, from left to right."""
        return False

    @abstractmethod
    def fill(self, canvas: Canvas) -> None:
        """Turn all masks of the canvas into tokens; raises what the engine raises."""


class BlockDrafter(Drafter):
    """A drafter that reveals tokens of a diffusion target's block. An optional extra, asked for by type.

    `table` tells which copies of its block the target reads to check a draft (blocks/verify.py). `stepwise`
    tells that a draft costs its tokens one by one, so that a shorter one is cheaper.
    """

    table: str
    stepwise: bool = True

    @abstractmethod
    def draft(self, canvas: Canvas, depth: int) -> Canvas:
        """Return a copy of a canvas of the target in which the draft model revealed up to `depth` masks.

        The passes of the copy are the draft model's.
        """

    @classmethod
    def exact_with(cls, **options: Any) -> bool:
        """Return whether the text is that of a target with a `sequential` sampler, in distribution."""
        return False


def check_serves(sampler: type[BlockSampler], name: str, model: BlockModel, called: str) -> None:
    """Raise UnsupportedModel for a sampler that a model cannot serve."""
    if sampler.copies and model.shifted:
        raise UnsupportedModel(
            f"`{name}` checks tokens in their own places, and `{called}` predicts them one place before",
            "Choose another sampler: `localspec parts samplers`",
        )


def check_pair(target: BlockModel, draft: BlockModel) -> None:
    """Raise BadValue unless a draft model can fill in a target's blocks."""
    if not target.causal or not draft.causal:
        raise BadValue(
            "A draft needs models whose text does not see the block that follows, such as SDAR",
            "Leave `--draft` out",
        )
    if (target.block, target.mask) != (draft.block, draft.mask):
        raise BadValue(
            f"The target fills in blocks of {target.block} tokens with the mask {target.mask}, the draft of "
            f"{draft.block} with {draft.mask}",
            "Choose a draft of the same family",
        )
