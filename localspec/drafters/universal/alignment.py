"""Keeps one text in the tokens of two vocabularies, aligned by bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from localspec.core.types import Tokens, shared_prefix
from localspec.formats.tokenizer.token_bytes import MARK, Translation, Vocabulary

WINDOW = 256  # bytes to search backwards for a word boundary that any tokenizer respects
BLANKS = b" \t\n\r\x0b\x0c"


class TokenizedText:
    """A text in one vocabulary: its tokens, its bytes, and the byte where each token ends."""

    def __init__(self, vocabulary: Vocabulary, first: Tokens = ()) -> None:
        self.tokens = list(first)
        self.ends = [0] * len(first)
        self.text = bytearray()
        self._vocabulary = vocabulary

    def add(self, tokens: Tokens) -> None:
        """Append `tokens`."""
        for token in tokens:
            self.text += self._vocabulary.bytes_of(token)
            self.ends.append(len(self.text))
        self.tokens += tokens

    def write(self, text: bytes) -> None:
        """Tokenize and append `text`."""
        self.add(self._vocabulary.encode(text))

    def keep(self, count: int) -> None:
        """Keep the first `count` tokens."""
        del self.tokens[count:], self.ends[count:]
        del self.text[self.end :]

    @property
    def end(self) -> int:
        """The number of bytes of all tokens."""
        return self.ends[-1] if self.ends else 0

    def cut(self, at: int, text: bytes | bytearray) -> int:
        """Return how many tokens end at the last word boundary, up to byte `at`, that any tokenizer respects.

        `text` equals that of the tokens up to `at`, and may differ after it. If none is found within WINDOW,
        the boundary is one where a character begins.
        """
        count = bisect_right(self.ends, at)
        least = bisect_left(self.ends, 1)  # tokens without text stay
        furthest = max(least, bisect_left(self.ends, at - WINDOW))
        for kept in range(count, furthest, -1):
            if between_words(text, self.ends[kept - 1], at):
                return kept
        while furthest > least and text[self.ends[furthest - 1]] & 0xC0 == 0x80:
            furthest -= 1
        return furthest


def between_words(text: bytes | bytearray, at: int, seen: int) -> bool:
    """Return whether every known pre-tokenizer splits `text` at byte `at`, of which `seen` bytes are known.

    They split before a blank that follows a non-blank, beside a special token, and at the beginning of a
    line. Blanks at a line's beginning split differently if text follows, so its first character must be
    known.
    """
    if at <= 0 or at >= len(text):
        return at <= 0
    before, after = text[at - 1], text[at]
    if MARK in (before, after):
        return True
    if after == 0x20:
        return before < 0x80 and before not in BLANKS
    return before == 0x0A and at < seen and after < 0x80 and after not in BLANKS


class Alignment:
    """The target's text in the draft's tokens, updated as the text grows or changes.

    Only the text after the last word boundary before a change is tokenized again. Tokens that the draft wrote
    itself stay where the target agreed, so that the draft's KV cache keeps them.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._held: tuple[TokenizedText, TokenizedText] | None = None  # also while they change
        self.anew = 0  # tokens that were not the draft's own in the last `follow`

    def follow(self, tokens: Tokens) -> None:
        """Make `tokens` the text, in both vocabularies."""
        target, draft = self._take()
        target.keep(shared_prefix(target.tokens, tokens))
        same = min(target.end, draft.end)
        target.add(tokens[len(target.tokens) :])
        same += shared_prefix(draft.text[same:], target.text[same:])
        count = bisect_right(draft.ends, same)
        if count == 0 or draft.ends[count - 1] < target.end:
            count = draft.cut(same, target.text)
        draft.keep(count)
        draft.write(bytes(target.text[draft.end :]))
        self.anew = len(draft.tokens) - count
        self._held = (target, draft)

    def extend(self, token: int, instead: int = 0) -> None:
        """Append the draft's own `token`, replacing its last `instead` tokens."""
        target, draft = self._take()
        draft.keep(len(draft.tokens) - instead)
        draft.add([token])
        self._held = (target, draft)

    @property
    def draft(self) -> TokenizedText:
        """The text and the draft's continuation of it, in the draft's tokens."""
        assert self._held is not None
        return self._held[1]

    @property
    def target(self) -> TokenizedText:
        """The text in the target's tokens."""
        assert self._held is not None
        return self._held[0]

    def _take(self) -> tuple[TokenizedText, TokenizedText]:
        """Return both texts and forget them, so that an interrupt leaves no wrong state."""
        held, self._held = self._held, None
        translation = self._translation
        return held or (
            TokenizedText(translation.target),
            TokenizedText(translation.draft, translation.first),
        )


class Continuation:
    """The draft's continuation of a text in the target's tokens, as far as their ends are certain."""

    def __init__(self, alignment: Alignment, translation: Translation) -> None:
        self._alignment = alignment
        self._translation = translation
        target = alignment.target
        self._from = target.ends[count - 1] if (count := target.cut(target.end, target.text)) else 0
        self.at = target.end  # bytes translated so far

    def tokens(self) -> list[int] | None:
        """Return the target's tokens for the text not yet taken, without an unfinished character.

        None if the taken tokens turn out to be tokenized differently: no guess after them can be accepted.
        """
        found = self._after(self._text())
        if (
            found is None and self.at == self._alignment.target.end
        ):  # the target tokenized its own text differently
            self._from = self.at
            found = self._after(self._text())
        return found

    def _text(self) -> bytes:
        """Return the text to tokenize again, and the whole characters written after it."""
        target = self._alignment.target
        written = self._written()
        return bytes(target.text[self._from :]) + written[max(0, self._from - target.end) : whole(written)]

    def _written(self) -> bytes:
        return bytes(self._alignment.draft.text[self._alignment.target.end :])

    def _after(self, text: bytes) -> list[int] | None:
        """Return the target's tokens of `text` from the translated byte on, None if no token begins there."""
        target = self._translation.target
        tokens, at = target.encode(text), self._from
        for count, token in enumerate(tokens):
            if at >= self.at:
                return tokens[count:] if at == self.at else None
            at += len(target.bytes_of(token))
        return [] if at <= self.at else None

    def take(self, token: int, alone: bool = False) -> int:
        """Take `token` as translated; return the byte where it ends in the text.

        Text after a token taken `alone` is tokenized separately.
        """
        self.at += len(self._translation.target.bytes_of(token))
        self._from = self.at if alone else self._from
        return self.at

    def openness(self, tokens: Tokens) -> float:
        """Return the probability that `tokens`, all text not yet taken, become one longer token."""
        ends = self._alignment.draft.ends
        within = ends[bisect_right(ends, self.at) - 1] != self.at
        return self._translation.open_in_target.openness(tokens, within)

    @property
    def unfinished(self) -> bool:
        """Return whether the draft ends within a character."""
        written = self._written()
        return whole(written) < len(written)


def whole(text: bytes) -> int:
    """Return the number of bytes of `text` before an unfinished UTF-8 character at its end."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80 or byte >= 0xF8:
            break
        if byte >= 0xC0:
            needed = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return len(text) - back if back < needed else len(text)
    return len(text)
