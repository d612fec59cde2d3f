"""What the tokens of a target and of its draft stand for, and which of them both have.

A special token is spelled by its name between two bytes that UTF-8 never has, so it cannot be taken for text
that looks like it, and whatever is done to bytes is done to special tokens too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Tokens

MARK = 0xFF  # never a byte of UTF-8


@dataclass(frozen=True)
class Vocabulary:
    """What the tokens of a model stand for.

    `pieces` are the bytes of each token: None for one that the other vocabulary cannot say, empty for one
    that it need not. `encode` returns the tokens of any bytes.
    """

    pieces: Sequence[bytes | None]
    encode: Callable[[bytes], list[int]]

    def piece(self, token: int) -> bytes:
        """Return the bytes of `token`; one beyond the vocabulary has none."""
        return (self.pieces[token] or b"") if token < len(self.pieces) else b""

    def speaks(self, token: int) -> bool:
        """Tell whether the other vocabulary can say `token`."""
        return token < len(self.pieces) and self.pieces[token] is not None


@dataclass(frozen=True)
class Translation:
    """A target's vocabulary and its draft's.

    Each of the draft's texts begins with `first`, and any of `ends` ends one.
    """

    target: Vocabulary
    draft: Vocabulary
    first: tuple[int, ...] = ()
    ends: frozenset[int] = frozenset()

    @cached_property
    def shared(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The target's tokens, ascending, that are single tokens of the draft too; what they are there."""
        known = {piece: token for token, piece in reversed(list(enumerate(self.target.pieces))) if piece}
        known |= {piece: self.target.encode(piece)[0] for piece in known if piece[0] == MARK}
        pairs = {
            known[piece]: token
            for token, piece in reversed(list(enumerate(self.draft.pieces)))
            if piece and piece in known
        }
        ordered = sorted(pairs)
        return np.array(ordered, np.int64), np.array([pairs[token] for token in ordered], np.int64)

    @cached_property
    def open_in_target(self) -> Extensions:
        """What the target writes in one token and the draft in several."""
        return Extensions(self.target, self.draft)

    @cached_property
    def open_in_draft(self) -> Extensions:
        """What the draft writes in one token and the target in several."""
        return Extensions(self.draft, self.target)

    def prepared(self) -> Translation:
        """Return itself, with what the first guess would otherwise wait for."""
        _ = self.shared, self.open_in_target, self.open_in_draft
        return self


class Extensions:
    """The tokens of a vocabulary by how they begin, and what another vocabulary makes of them."""

    def __init__(self, own: Vocabulary, other: Vocabulary) -> None:
        self._own = own
        self._other = {piece for piece in other.pieces if piece}
        self._sorted = sorted((piece, token) for token, piece in enumerate(own.pieces) if piece)
        self._found: dict[bytes, tuple[list[int], float]] = {}
        self._sums = list(accumulate((1 / (token + 1) for _, token in self._sorted), initial=0.0))

    def of(self, text: bytes) -> list[int]:
        """Return the tokens longer than `text` that begin with it and that the other cuts there.

        It does so where it has no longer beginning of them as a token.
        """
        return self._weighed(text)[0]

    def _weighed(self, text: bytes) -> tuple[list[int], float]:
        """Return the tokens that go on from `text`, and the weight of all of them."""
        if text not in self._found:
            tokens = list(self._cut(text))
            self._found[text] = tokens, sum(1 / (token + 1) for token in tokens)
        return self._found[text]

    def _longer(self, text: bytes) -> tuple[int, int]:
        """Return the places in order, first and end, of the tokens longer than `text` that begin with it."""
        first = bisect_left(self._sorted, (text + b"\0", 0))
        return first, bisect_left(self._sorted, (text + b"\xff" * 8, 0), first)

    def _cut(self, text: bytes) -> Iterator[int]:
        """Yield the tokens longer than `text` that begin with it, and with no longer one of the other."""
        at, end = self._longer(text)
        while at < end:
            piece, token = self._sorted[at]
            beginnings = (piece[:size] for size in range(len(text) + 1, len(piece) + 1))
            if begun := next((each for each in beginnings if each in self._other), None):
                at = max(at + 1, self._longer(begun)[1])
            else:
                yield token
                at += 1

    def openness(self, tokens: Tokens, within: bool = False) -> float:
        """Return how likely `tokens`, which end a text, become one longer token as it goes on.

        A vocabulary's tokens are nearly in the order of their frequency, so by Zipf's law one weighs 1 / id.
        Where `tokens` begin `within` a token of the other, what it would rather have written tells nothing.
        """
        text = b"".join(map(self._own.piece, tokens))
        if within:
            first, end = self._longer(text)
            weight = self._sums[end] - self._sums[first]
        else:
            weight = self._weighed(text)[1]
        return weight / (weight + 1 / (max(tokens) + 1))
