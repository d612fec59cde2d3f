"""One text in the tokens of two vocabularies: what they share is its bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from localspec.core.types import Tokens, shared_prefix
from localspec.formats.tokenizer.token_bytes import MARK, Translation, Vocabulary

WINDOW = 256  # bytes to look back for a place where words are cut, whatever stands around it
BLANKS = b" \t\n\r\x0b\x0c"


class Spelling:
    """A text in one vocabulary: its tokens, its bytes, and the place in them where each token ends."""

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
        """Append what the vocabulary makes of `text`."""
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
        """Return how many tokens end at the last place, up to byte `at`, where any vocabulary cuts words.

        `text` is that of the tokens up to there, and may go on otherwise. Without such a place in a window,
        it is one where a character begins.
        """
        count = bisect_right(self.ends, at)
        least = bisect_left(self.ends, 1)  # what stands for nothing stays
        furthest = max(least, bisect_left(self.ends, at - WINDOW))
        for kept in range(count, furthest, -1):
            if between_words(text, self.ends[kept - 1], at):
                return kept
        while furthest > least and text[self.ends[furthest - 1]] & 0xC0 == 0x80:
            furthest -= 1
        return furthest


def between_words(text: bytes | bytearray, at: int, seen: int) -> bool:
    """Tell whether every known way to cut words cuts `text` at byte `at`, of which tokens show `seen` bytes.

    So it is before a blank after something else, beside a special token, and at the beginning of a line: but
    blanks are cut otherwise where something follows, so the line's first character must have been seen.
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
    """The target's text in the draft's tokens, kept in step as the text grows or changes.

    Only what follows the last cut between words before a change is encoded anew. What the draft has written
    itself stays as it is where the target agreed, so a cache over the draft's tokens keeps it.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._held: tuple[Spelling, Spelling] | None = None  # none while they change: for interrupts
        self.anew = 0  # how many tokens were not the draft's own when it last followed

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
        """Let the draft go on with `token` of its own, which takes the place of the last `instead` tokens."""
        target, draft = self._take()
        draft.keep(len(draft.tokens) - instead)
        draft.add([token])
        self._held = (target, draft)

    @property
    def draft(self) -> Spelling:
        """The text, and what the draft wrote after it, in the draft's tokens."""
        assert self._held is not None
        return self._held[1]

    @property
    def target(self) -> Spelling:
        """The text in the target's tokens."""
        assert self._held is not None
        return self._held[0]

    def _take(self) -> tuple[Spelling, Spelling]:
        """Return both texts and forget them, so that an interrupt leaves no false claim."""
        held, self._held = self._held, None
        translation = self._translation
        return held or (Spelling(translation.target), Spelling(translation.draft, translation.first))


class Continuation:
    """What the draft writes after a text, in the target's tokens, as far as their ends are certain."""

    def __init__(self, alignment: Alignment, translation: Translation) -> None:
        self._alignment = alignment
        self._translation = translation
        target = alignment.target
        self._from = target.ends[count - 1] if (count := target.cut(target.end, target.text)) else 0
        self.at = target.end  # bytes that are translated

    def tokens(self) -> list[int] | None:
        """Return the target's tokens for what is written and not yet taken; an unfinished character waits.

        None when what was taken has turned out to be cut otherwise: nothing after it can stand.
        """
        found = self._after(self._text())
        if found is None and self.at == self._alignment.target.end:  # the target cut its own text otherwise
            self._from = self.at
            found = self._after(self._text())
        return found

    def _text(self) -> bytes:
        """Return the text from where it is cut anew, and what is written after it in whole characters."""
        target = self._alignment.target
        written = self._written()
        return bytes(target.text[self._from :]) + written[max(0, self._from - target.end) : whole(written)]

    def _written(self) -> bytes:
        return bytes(self._alignment.draft.text[self._alignment.target.end :])

    def _after(self, text: bytes) -> list[int] | None:
        """Return the target's tokens of `text` from the translated byte on, None when none begins there."""
        target = self._translation.target
        tokens, at = target.encode(text), self._from
        for count, token in enumerate(tokens):
            if at >= self.at:
                return tokens[count:] if at == self.at else None
            at += len(target.bytes_of(token))
        return [] if at <= self.at else None

    def take(self, token: int, alone: bool = False) -> int:
        """Take `token` as translated; return where its bytes end in the text.

        What follows one that was taken `alone` is cut for itself.
        """
        self.at += len(self._translation.target.bytes_of(token))
        self._from = self.at if alone else self._from
        return self.at

    def openness(self, tokens: Tokens) -> float:
        """Return how likely `tokens`, all that is written and not yet taken, become one longer token."""
        ends = self._alignment.draft.ends
        within = ends[bisect_right(ends, self.at) - 1] != self.at
        return self._translation.open_in_target.openness(tokens, within)

    @property
    def unfinished(self) -> bool:
        """Tell whether the draft stands within a character."""
        written = self._written()
        return whole(written) < len(written)


def whole(text: bytes) -> int:
    """Return how many bytes of `text` stand before a character of UTF-8 that its end leaves unfinished."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte < 0x80 or byte >= 0xF8:
            break
        if byte >= 0xC0:
            needed = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return len(text) - back if back < needed else len(text)
    return len(text)
