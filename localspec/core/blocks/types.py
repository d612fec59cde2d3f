"""The values of block diffusion: tokens to denoise, and the result of a pass over them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Logits, Tokens

Table = NDArray[np.bool_]  # [tokens, tokens]: whether the token of a row sees that of a column
Places = NDArray[np.int64]  # positions in a block, from 0


class Block(NamedTuple):
    """Tokens that a pass reads after a text and does not keep; masks stand for unknown ones.

    `positions` [n] are those of the rotary encoding. `visible` [n, n] tells which token sees which; None:
    each sees all. All of them see the text. The last `beside` tokens are copies beside the text: no token
    of it sees them, not even in a model whose text sees what follows. `offsets` [n, width] are added to
    the embeddings.
    """

    tokens: Tokens
    positions: Tokens
    visible: Table | None = None
    beside: int = 0
    offsets: Logits | None = None


class BlockPass(NamedTuple):
    """The logits [n, vocab] about each token of a block, the token itself if that is a mask.

    `attention` [n, n] is that of the row that predicts a token to the tokens of the block, in the last layer,
    the mean over heads. It is None unless it was asked for.
    """

    logits: Logits
    attention: Logits | None = None


class Candidates(NamedTuple):
    """The tokens that a model would write at some places [n] of a block.

    `tokens` [n] are its choice, `confidence` [n] their probabilities and `entropy` [n] that of all tokens, in
    nats, both of the plain softmax at any temperature. `attention` is that of the pass.
    """

    places: Places
    tokens: NDArray[np.int64]
    confidence: NDArray[np.float64]
    entropy: NDArray[np.float64]
    attention: Logits | None = None
