"""The bytes of the tokens of a target and its draft, and which tokens both have.

A special token is its name between two bytes that never occur in UTF-8, so it cannot be confused with text
that looks like it, and operations on bytes apply to special tokens too.
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
    """The bytes of a model's tokens.

    `token_bytes` is None for a token that the other vocabulary cannot express, and empty for one that it need
    not. `encode` returns the tokens of any bytes.
    """

    token_bytes: Sequence[bytes | None]
    encode: Callable[[bytes], list[int]]

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of `token`, none for a token beyond the vocabulary."""
        return (self.token_bytes[token] or b"") if token < len(self.token_bytes) else b""

    def is_expressible(self, token: int) -> bool:
        """Return whether the other vocabulary can express `token`."""
        return token < len(self.token_bytes) and self.token_bytes[token] is not None


@dataclass(frozen=True)
class Translation:
    """A target's vocabulary and its draft's.

    Every text of the draft begins with the tokens `first` and ends with one of `stop_tokens`.
    """

    target: Vocabulary
    draft: Vocabulary
    first: tuple[int, ...] = ()
    stop_tokens: frozenset[int] = frozenset()

    @cached_property
    def shared(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The target's tokens, ascending, that are single tokens of the draft too; their ids in the draft."""
        ids = {text: token for token, text in reversed(list(enumerate(self.target.token_bytes))) if text}
        ids |= {text: self.target.encode(text)[0] for text in ids if text[0] == MARK}
        pairs = {
            ids[text]: token
            for token, text in reversed(list(enumerate(self.draft.token_bytes)))
            if text and text in ids
        }
        ordered = sorted(pairs)
        return np.array(ordered, np.int64), np.array([pairs[token] for token in ordered], np.int64)

    @cached_property
    def open_in_target(self) -> Extensions:
        """The texts that are one token of the target and several of the draft."""
        return Extensions(self.target, self.draft)

    @cached_property
    def open_in_draft(self) -> Extensions:
        """The texts that are one token of the draft and several of the target."""
        return Extensions(self.draft, self.target)

    def prepared(self) -> Translation:
        """Compute the cached properties, so that the first guess does not wait for them; return itself."""
        _ = self.shared, self.open_in_target, self.open_in_draft
        return self


class Extensions:
    """Finds the tokens of a vocabulary that extend a text, where another vocabulary ends a token."""

    def __init__(self, own: Vocabulary, other: Vocabulary) -> None:
        self._own = own
        self._other = {text for text in other.token_bytes if text}
        self._sorted = sorted((text, token) for token, text in enumerate(own.token_bytes) if text)
        self._cache: dict[bytes, tuple[list[int], float]] = {}
        self._sums = list(accumulate((1 / (token + 1) for _, token in self._sorted), initial=0.0))

    def tokens_after(self, text: bytes) -> list[int]:
        """Return the tokens that extend `text`, if the other vocabulary ends a token at its end.

        It does unless a longer prefix of the token is one of its tokens.
        """
        return self._weighed(text)[0]

    def _weighed(self, text: bytes) -> tuple[list[int], float]:
        """Return the tokens that extend `text`, and their total weight."""
        if text not in self._cache:
            tokens = list(self._split(text))
            self._cache[text] = tokens, sum(1 / (token + 1) for token in tokens)
        return self._cache[text]

    def _longer(self, text: bytes) -> tuple[int, int]:
        """Return the range, in sorted order, of the tokens that begin with `text` and are longer."""
        first = bisect_left(self._sorted, (text + b"\0", 0))
        return first, bisect_left(self._sorted, (text + b"\xff" * 8, 0), first)

    def _split(self, text: bytes) -> Iterator[int]:
        """Yield the tokens that begin with `text` and are longer, but with no longer token of the other."""
        at, end = self._longer(text)
        while at < end:
            token_text, token = self._sorted[at]
            prefixes = (token_text[:size] for size in range(len(text) + 1, len(token_text) + 1))
            if prefix := next((prefix for prefix in prefixes if prefix in self._other), None):
                at = max(at + 1, self._longer(prefix)[1])
            else:
                yield token
                at += 1

    def openness(self, tokens: Tokens, within: bool = False) -> float:
        """Return the probability that `tokens`, the end of a text, become one longer token as it grows.

        Token ids are nearly in order of frequency, so by Zipf's law a token weighs 1 / id. If `tokens` begin
        `within` a token of the other vocabulary, all longer tokens count, wherever it would end its own.
        """
        text = b"".join(map(self._own.bytes_of, tokens))
        if within:
            first, end = self._longer(text)
            weight = self._sums[end] - self._sums[first]
        else:
            weight = self._weighed(text)[1]
        return weight / (weight + 1 / (max(tokens) + 1))
