"""The values of block diffusion: tokens to denoise, and the result of a pass over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Logits, Tokens

Table = NDArray[np.bool_]  # [tokens, tokens]: whether the token of a row sees that of a column
Places = NDArray[np.int64]  # positions in a block, from 0
Numbers = NDArray[np.float64]


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


class Likeliest(NamedTuple):
    """The likeliest tokens [n] of a pass but for the mask, their probabilities and the entropies in nats.

    Those are of the softmax over all tokens but the mask. A probability is NaN where a logit is.
    """

    tokens: NDArray[np.int64]
    probs: Numbers
    entropy: Numbers


class BlockPass(NamedTuple):
    """The logits [n, vocab] about each token of a block, the token itself if that is a mask.

    `attention` [n, n] is that of the row that predicts a token to the tokens of the block, in the last layer,
    the mean over heads. It is None unless it was asked for. `likeliest` is what a session knows of logits
    that lie on a device, None where they are in main memory.
    """

    logits: Logits
    attention: Logits | None = None
    likeliest: Likeliest | None = None


class Candidates:
    """The tokens that a model would write at some places [n] of a block.

    `tokens` [n] are its choice, `confidence` [n] their probabilities and `entropy` [n] that of all tokens, in
    nats, both of the plain softmax at any temperature. These two may be given as functions, which are called
    when they are asked for. `attention` is that of the pass.
    """

    def __init__(
        self,
        places: Places,
        tokens: NDArray[np.int64],
        confidence: Numbers | Callable[[], Numbers],
        entropy: Numbers | Callable[[], Numbers],
        attention: Logits | None = None,
    ) -> None:
        self.places, self.tokens, self.attention = places, tokens, attention
        self._confidence, self._entropy = confidence, entropy

    @property
    def confidence(self) -> Numbers:
        """The probabilities [n] of the tokens."""
        if callable(self._confidence):
            self._confidence = self._confidence()
        return self._confidence

    @property
    def entropy(self) -> Numbers:
        """The entropies [n] in nats."""
        if callable(self._entropy):
            self._entropy = self._entropy()
        return self._entropy
