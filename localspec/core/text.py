"""Text of tokens as they stream, with a `tokenizers.Tokenizer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class TextStream:
    """Decodes tokens into whole characters as they come, and holds incomplete ones back.

    Special tokens have no text, unless they are `shown`.
    """

    def __init__(self, tokenizer: Tokenizer, *, shown: bool = False) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._hidden = not shown
        self._stream = DecodeStream(skip_special_tokens=self._hidden)
        self._pending: list[int] = []  # tokens since the last piece

    def push(self, token: int) -> str:
        """Return the characters that `token` completes."""
        self._pending.append(token)
        piece = self._stream.step(self._tokenizer, token)
        if piece is None:
            return ""
        self._pending.clear()
        return str(piece)

    def flush(self) -> str:
        """Return the rest at the end; an incomplete character shows as U+FFFD."""
        rest, self._pending = self._pending, []
        return str(self._tokenizer.decode(rest, skip_special_tokens=self._hidden))
