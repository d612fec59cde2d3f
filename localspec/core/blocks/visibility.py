"""Which tokens of a block, and of copies of it, see one another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.core.blocks.types import Table


def shadow(length: int) -> Table:
    """Return the table [2 length, 2 length] of a block and its shadow of masks ("WINO", arXiv 2507.18578).

    Tokens see the block alone. A shadow sees the block except the token in its own place, and all shadows.
    """
    table = np.zeros((2 * length, 2 * length), bool)
    table[:length, :length] = True
    table[length:, :length] = ~np.eye(length, dtype=bool)
    table[length:, length:] = True
    return table


def two_copies(steps: Sequence[int]) -> Table:
    """Return the table [2 n, 2 n] of a block's data and of its masks (SimSD, arXiv 2606.02544).

    `steps` [n] are those in which a draft revealed the tokens. Data i sees data j of steps up to its own, and
    masks j of later ones; mask i sees data j of earlier steps, and masks j of its own and later ones.

    With one layer, the logits of mask i are those of the block as it was before step i. With more layers they
    are close to them: data and masks see one another as they were at other steps than i.
    """
    own, other = np.array(steps)[:, None], np.array(steps)[None]
    return np.block([[other <= own, other > own], [other < own, other >= own]])


def apart(length: int, copies: int) -> Table:
    """Return the table of copies of a block, side by side, each of which sees itself alone."""
    return np.kron(np.eye(copies, dtype=bool), np.ones((length, length), bool))


def blockwise(positions: Sequence[int], block: int) -> Table:
    """Return the table [n, n] of tokens that see their own block and earlier ones."""
    blocks = np.array(positions) // block
    found: Table = blocks[None] <= blocks[:, None]
    return found
