"""The training of block-diffusion models: noise, the attention of both copies of a text, and the loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from localspec.core.blocks.types import Table
from localspec.formats.diffusion.decoder import BlockDecoder

LEAST = 0.05  # least share of masks in a block: none would teach nothing


def two_views(length: int, block: int) -> Table:
    """Return the table [2 length, 2 length] of a text with masks, and of the same text without.

    Blocks with masks see themselves and the earlier blocks without; blocks without masks see themselves and
    earlier ones (Arriola et al. 2025, "Block Diffusion", figure 3).
    """
    blocks = np.arange(length) // block
    own, other = blocks[:, None], blocks[None]
    return np.block([[own == other, other < own], [np.zeros_like(own == other), other <= own]])


def noised(tokens: Any, mask: int, block: int, generator: Any) -> tuple[Any, Any]:
    """Return texts [batch, length] with masks, and where these are; each block has a share of its own."""
    import torch

    batch, length = tokens.shape
    blocks = -(-length // block)
    share = torch.rand(batch, blocks, generator=generator, device=tokens.device) * (1 - LEAST) + LEAST
    share = share.repeat_interleave(block, 1)[:, :length]
    drawn = torch.rand(batch, length, generator=generator, device=tokens.device)
    masked = drawn < share
    return tokens.masked_fill(masked, mask), masked


def block_loss(decoder: BlockDecoder, tokens: Any, counted: Any, table: Any, generator: Any) -> Any:
    """Return the mean cross-entropy of masked tokens, of texts [batch, length].

    `counted` [batch, length] tells which tokens are learned; others are never masked. `table` is that of
    `two_views` on the device. One pass reads all blocks at once.
    """
    import torch

    shape, length = decoder.shape, tokens.shape[1]
    with_masks, masked = noised(tokens, shape.mask, shape.block, generator)
    masked &= counted
    with_masks = torch.where(masked, with_masks, tokens)
    positions = torch.arange(length, device=tokens.device).repeat(2)
    inputs = decoder.embed(torch.cat([with_masks, tokens], 1))
    hidden = decoder.run(inputs, positions, table).hidden[:, :length]
    logits = decoder.logits(hidden[masked]).float()
    return torch.nn.functional.cross_entropy(logits, tokens[masked])
