"""Text of tokens as they stream, with a `tokenizers.Tokenizer`."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
LONGEST, KEPT = 8, 4  # tokens of the window: a character of four bytes has at most four tokens


class TextStream:
    """Decodes tokens into whole characters as they come, and holds incomplete ones back.

    The pieces add up to what the tokenizer makes of all the tokens at once, whatever they are, as long as
    its decoder never changes a text that more tokens follow. (A run of byte tokens, as SentencePiece's
    `<0xF0>`, is such a text: one wrong byte makes each of its bytes U+FFFD. So it is held until it ends.)
    Special tokens have no text, unless all are `shown`, or their own text is among those `shown`.
    """

    def __init__(self, tokenizer: Tokenizer, *, shown: bool | Collection[str] = False) -> None:
        self._tokenizer = tokenizer
        self._hidden = frozenset[str]() if shown is True else _special_texts(tokenizer) - set(shown or ())
        self._has_byte_tokens = _falls_back_to_bytes(tokenizer)
        self._held: dict[int, bool | None] = {}  # by token: whether it is a byte token, None without text
        self._window: list[int] = []  # the last tokens: what the text of the next one depends on
        self._given = 0  # characters of the window's text that were returned

    def push(self, token: int) -> str:
        """Return the characters that `token` completes."""
        held = self._held[token] if token in self._held else self._held.setdefault(token, self._kind(token))
        if held is None:
            return ""
        self._window.append(token)
        return "" if held else self._next()

    def flush(self) -> str:
        """Return the rest at the end; an incomplete character shows as U+FFFD."""
        rest = self._text(self._window)[self._given :]
        self._window, self._given = [], 0
        return rest

    def _kind(self, token: int) -> bool | None:
        text = self._tokenizer.id_to_token(token)
        if text is None or text in self._hidden:
            return None
        return self._has_byte_tokens and len(text) == 6 and text[:3] == "<0x" and text[-1] == ">"

    def _next(self) -> str:
        """Return what the window's text has more than was returned; U+FFFD at its end may yet change."""
        text = self._text(self._window)
        pending = text.endswith(UNKNOWN)
        piece, self._given = text[self._given : len(text) - pending], len(text) - pending
        if len(self._window) > LONGEST:
            self._shorten(pending)
        return piece

    def _shorten(self, pending: bool) -> None:
        """Drop the first tokens of the window, unless the others alone have another end."""
        text = self._text(self._window[-KEPT:])
        if text and text.endswith(UNKNOWN) == pending:
            self._window, self._given = self._window[-KEPT:], len(text) - pending

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))


def _special_texts(tokenizer: Tokenizer) -> frozenset[str]:
    added = tokenizer.get_added_tokens_decoder().values()
    return frozenset(token.content for token in added if token.special)


def _falls_back_to_bytes(tokenizer: Tokenizer) -> bool:
    decoder = tokenizer.decoder
    return decoder is not None and '"ByteFallback"' in json.dumps(json.loads(decoder.__getstate__()))
