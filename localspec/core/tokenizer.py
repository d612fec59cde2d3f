"""Ids to text and back, and text as it streams, with a `tokenizers.Tokenizer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextStream:
    """Text of tokens as they come, in whole characters; special tokens have none.

    Characters that several tokens share are held until they are complete.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._last: list[int] = []  # tokens of the last piece, then those since: what flush decodes
        self._pending = 0

    def push(self, token: int) -> str:
        """Return the whole characters that are certain after `token`."""
        piece = self._stream.step(self._tokenizer, token)
        if piece is not None:
            self._last = self._last[len(self._last) - self._pending :] if self._pending else []
            self._pending = 0
            self._last.append(token)
            return str(piece)
        self._last.append(token)
        self._pending += 1
        return ""

    def flush(self) -> str:
        """Return what is left at the end: an incomplete character shows as U+FFFD."""
        if not self._pending:
            return ""
        shown = self._tokenizer.decode(self._last[: -self._pending], skip_special_tokens=True)
        return str(self._tokenizer.decode(self._last, skip_special_tokens=True))[len(shown) :]
