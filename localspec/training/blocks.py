"""The training of block-diffusion models: noise, the attention of both copies of a text, and the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.core.blocks.types import Places, Table
from localspec.drafting.build_step import TargetText
from localspec.formats.diffusion.decoder import BlockDecoder
from localspec.training.loop import autocast

LEAST = 0.05  # least share of masks in a block: none would teach nothing


def two_views(length: int, block: int) -> Table:
    """Return the table [2 length, 2 length] of a text with masks, and of the same text without.

    Blocks with masks see themselves and the earlier blocks without; blocks without masks see themselves and
    earlier ones (Arriola et al. 2025, "Block Diffusion", figure 3).
    """
    blocks = np.arange(length) // block
    own, other = blocks[:, None], blocks[None]
    return np.block([[own == other, other < own], [np.zeros_like(own == other), other <= own]])


def noised(tokens: Any, mask: int, block: int, generator: Any, ends: float = 0.0) -> tuple[Any, Any]:
    """Return texts [batch, length] with masks, and where these are; each block has a share of its own.

    A share `ends` of the blocks has its masks at the end, as a sampler from left to right meets them.
    """
    import torch

    batch, length = tokens.shape

    def drawn(count: int) -> Any:
        return torch.rand(batch, count, generator=generator, device=tokens.device)

    def of_tokens(values: Any) -> Any:
        return values.repeat_interleave(block, 1)[:, :length]

    blocks = -(-length // block)
    share = drawn(blocks) * (1 - LEAST) + LEAST
    masked = drawn(length) < of_tokens(share)
    if ends:
        first = (block - (share * block).ceil()).long()
        at_end = torch.arange(length, device=tokens.device) % block >= of_tokens(first)
        masked = torch.where(of_tokens(drawn(blocks) < ends), at_end, masked)
    return tokens.masked_fill(masked, mask), masked


def block_loss(
    decoder: BlockDecoder,
    tokens: Any,
    counted: Any,
    table: Any,
    generator: Any,
    *,
    ends: float = 0.0,
    teacher: BlockDecoder | None = None,
) -> Any:
    """Return the mean cross-entropy of masked tokens, of texts [batch, length].

    `counted` [batch, length] tells which tokens are learned; others are never masked. `table` is that of
    `two_views` on the device. One pass reads all blocks at once. With a `teacher`, which reads the same
    masks, the loss is the mean of that and of the cross-entropy to the teacher's distributions.
    """
    import torch

    shape, length = decoder.shape, tokens.shape[1]
    with_masks, masked = noised(tokens, shape.mask, shape.block, generator, ends)
    masked &= counted
    both = torch.cat([torch.where(masked, with_masks, tokens), tokens], 1)
    positions = torch.arange(length, device=tokens.device).repeat(2)

    def logits(of: BlockDecoder) -> Any:
        hidden = of.run(of.embed(both), positions, table).hidden[:, :length]
        return of.logits(hidden[masked]).float()

    found, entropy = logits(decoder), torch.nn.functional.cross_entropy
    loss = entropy(found, tokens[masked])
    if teacher is None:
        return loss
    with torch.no_grad():
        taught = logits(teacher).softmax(-1)
    return (loss + entropy(found, taught)) / 2


class BlockLearner:
    """A block-diffusion model in training on texts of questions and answers; the answers are learned.

    `end` fills up the block that an answer ends in, so that a block may be filled in whole. A share `ends` of
    the blocks has its masks at the end. A draft learns from its target as the `teacher`, too.
    """

    def __init__(
        self,
        decoder: BlockDecoder,
        held_out: Sequence[TargetText],
        end: int,
        *,
        batch: int = 8,
        seed: int = 0,
        ends: float = 0.0,
        teacher: BlockDecoder | None = None,
    ) -> None:
        self._decoder, self._held_out, self._end = decoder, list(held_out), end
        self._batch, self._seed, self._ends, self._teacher = batch, seed, ends, teacher
        self._device = next(iter(decoder.weights.values())).device
        self._generator = self._generator_of(seed)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters to train by name."""
        return dict(self._decoder.weights)

    def loss(self, texts: Sequence[TargetText], progress: float) -> Any:
        """Return the loss of masks in some texts, in nats a token."""
        del progress
        return self._loss(texts, self._generator)

    def score(self) -> float:
        """Return the negative loss on the held-out texts, with the same masks each time."""
        import torch

        generator, losses = self._generator_of(self._seed + 1), []
        with torch.no_grad():
            for at in range(0, len(self._held_out), self._batch):
                losses.append(self._loss(self._held_out[at : at + self._batch], generator).item())
        return -float(sum(losses)) / max(len(losses), 1)

    def found(self, score: float, before: float) -> str:
        """Return what an evaluation found, in words."""
        return f"{-score:.3f} nats a masked token on held-out texts, {-before:.3f} before"

    def _loss(self, texts: Sequence[TargetText], generator: Any) -> Any:
        import torch

        tokens, counted = padded(texts, self._end, self._decoder.shape.block)
        table = torch.from_numpy(two_views(tokens.shape[1], self._decoder.shape.block)).to(self._device)
        ids, learned = (torch.from_numpy(values).to(self._device) for values in (tokens, counted))
        with autocast(self._device):
            return block_loss(
                self._decoder, ids, learned, table, generator, ends=self._ends, teacher=self._teacher
            )

    def _generator_of(self, seed: int) -> Any:
        import torch

        return torch.Generator(self._device).manual_seed(seed)


def padded(texts: Sequence[TargetText], end: int, block: int) -> tuple[Places, Table]:
    """Return texts [batch, length] in whole blocks, and which tokens are learned: those of answers."""
    sizes = [(len(text.prompt), len(text.prompt) + len(text.answer)) for text in texts]
    length = max(-(-size // block) * block for _, size in sizes)
    tokens = np.full((len(texts), length), end, np.int64)
    counted = np.zeros((len(texts), length), bool)
    for row, (text, (first, last)) in enumerate(zip(texts, sizes, strict=True)):
        tokens[row, :last] = [*text.prompt, *text.answer]
        counted[row, first : -(-last // block) * block] = True
    return tokens, counted
