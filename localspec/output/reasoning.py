"""Parser for the reasoning that a model writes before its answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from localspec.core.stop import overlap

if TYPE_CHECKING:
    from tokenizers import Tokenizer

OPENS, CLOSES = "<think>", "</think>"
MAX_MARK = 32  # tokens of a mark and the blanks behind it


class OutputPiece(NamedTuple):
    """A piece of a model's output: reasoning, or part of the answer."""

    text: str
    is_reasoning: bool = False


class ThoughtMarks(NamedTuple):
    """The marks around a model's reasoning that are single tokens of its vocabulary, by their ids.

    If both are, only these tokens are marks, and the same text in other tokens is text. `special` tells that
    such a token has no text in an answer.
    """

    tokens: Mapping[int, str] = {}
    special: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ThoughtMarks:
        """Return the marks among a tokenizer's added tokens: other words may be cut in several ways."""
        added = tokenizer.get_added_tokens_decoder()
        tokens = {token: each.content for token, each in added.items() if each.content in (OPENS, CLOSES)}
        return cls(tokens, any(added[token].special for token in tokens))

    @property
    def by_token(self) -> bool:
        """Whether tokens mark the reasoning, not their text."""
        return len(self.tokens) == 2

    def open_at_end(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
        """Return whether a prompt ends with the opening mark, and blanks at most behind it."""
        last = list(prompt[-MAX_MARK:])
        if not self.by_token:
            return str(tokenizer.decode(last, skip_special_tokens=False)).rstrip().endswith(OPENS)
        for token in reversed(last):
            if token in self.tokens:
                return self.tokens[token] == OPENS
            if str(tokenizer.decode([token], skip_special_tokens=False)).strip():
                return False
        return False


class ReasoningParser:
    """Splits a model's output, as it streams, into the reasoning between the marks and the answer after it.

    `inside` tells that the prompt ends with the opening mark, as in some chat templates.
    """

    def __init__(self, inside: bool = False, marks: ThoughtMarks | None = None) -> None:
        self._marks = marks or ThoughtMarks()
        self._places: set[int] = set()  # of tokens that are marks, in the whole output
        self._at = 0  # the place of the buffer
        self._buffer = ""
        self._inside = inside
        self._answering = False
        self._skips_newlines = False  # behind the opening mark
        self._skips_blanks = False  # between the reasoning and the answer

    def push(self, piece: str, places: Iterable[int] = ()) -> list[OutputPiece]:
        """Return the text that `piece` completes; `places` are those of marks, as in a `Step`."""
        self._buffer += piece
        self._places.update(places)
        pieces = []
        if not self._inside and not self._answering:
            self._find_opening_mark()
        if self._inside:
            pieces.append(self._reasoning())
        if self._answering:
            pieces.append(self._answer())
        return [piece for piece in pieces if piece.text]

    def end(self) -> list[OutputPiece]:
        """Return the rest, once the output has ended."""
        rest = OutputPiece(self._take(len(self._buffer)), self._inside)
        return [rest] if rest.text else []

    def _take(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        self._at += count
        return text

    def _find_opening_mark(self) -> None:
        blanks = len(self._buffer) - len(self._buffer.lstrip())
        at = self._next(OPENS)
        if at == blanks and self._is_whole(OPENS, at):
            self._inside = self._skips_newlines = True
            self._take(at + len(OPENS))
        elif at != blanks:
            self._answering = True

    def _next(self, mark: str) -> int:
        """Return where in the buffer a mark begins, or may begin at its end; else the buffer's length."""
        if self._marks.by_token:
            places = sorted(place - self._at for place in self._places if place >= self._at)
            return next(
                (at for at in places if mark.startswith(self._buffer[at:][: len(mark)])), len(self._buffer)
            )
        at = self._buffer.find(mark)
        return at if at >= 0 else len(self._buffer) - overlap(self._buffer, mark)

    def _is_whole(self, mark: str, at: int) -> bool:
        return self._buffer.startswith(mark, at)

    def _reasoning(self) -> OutputPiece:
        """Take the reasoning off the buffer, except for the beginning of a closing mark."""
        at = self._next(CLOSES)
        closes = self._is_whole(CLOSES, at)
        text = self._take(at)
        if self._skips_newlines:
            text = text.lstrip("\n")
            self._skips_newlines = not text
        if closes:
            self._take(len(CLOSES))
            self._inside, self._answering, self._skips_blanks = False, True, True
        return OutputPiece(text, is_reasoning=True)

    def _answer(self) -> OutputPiece:
        """Take the answer off the buffer, without further marks that have no text."""
        text = ""
        while self._marks.special and self._marks.by_token:
            at, mark = min((self._next(mark), mark) for mark in (OPENS, CLOSES))
            if at == len(self._buffer):
                break
            text += self._take(at)
            if not self._is_whole(mark, 0):
                return OutputPiece(self._said(text))
            self._take(len(mark))
        return OutputPiece(self._said(text + self._take(len(self._buffer))))

    def _said(self, text: str) -> str:
        if self._skips_blanks:
            text = text.lstrip()
            self._skips_blanks = not text
        return text


def split(
    text: str, inside: bool = False, marks: ThoughtMarks | None = None, places: Iterable[int] = ()
) -> tuple[str, str]:
    """Return the reasoning and the answer of a complete output, without the blanks around the reasoning."""
    parser = ReasoningParser(inside, marks)
    pieces = [*parser.push(text, places), *parser.end()]
    reasoning = "".join(piece.text for piece in pieces if piece.is_reasoning)
    return reasoning.strip(), "".join(piece.text for piece in pieces if not piece.is_reasoning)
