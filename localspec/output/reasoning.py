"""Parser for the reasoning that a model writes before its answer."""

from __future__ import annotations

from typing import NamedTuple

from localspec.core.stop import overlap

OPENS, CLOSES = "<think>", "</think>"


class OutputPiece(NamedTuple):
    """A piece of a model's output: reasoning, or part of the answer."""

    text: str
    is_reasoning: bool = False


class ReasoningParser:
    """Splits a model's output, as it streams, into the reasoning between the tags and the answer after it.

    `inside` tells that the prompt ends with the opening tag, as in some chat templates.
    """

    def __init__(self, inside: bool = False) -> None:
        self._buffer = ""
        self._inside = inside
        self._answering = False
        self._skips_blanks = False  # between the reasoning and the answer

    def push(self, piece: str) -> list[OutputPiece]:
        """Return the text that `piece` completes."""
        self._buffer += piece
        pieces = []
        if not self._inside and not self._answering:
            self._find_opening_tag()
        if self._inside:
            pieces.append(self._reasoning())
        if self._skips_blanks:
            self._buffer = self._buffer.lstrip()
            self._skips_blanks = not self._buffer
        if self._answering:
            pieces.append(OutputPiece(self._buffer))
            self._buffer = ""
        return [piece for piece in pieces if piece.text]

    def end(self) -> list[OutputPiece]:
        """Return the rest, once the output has ended."""
        rest = OutputPiece(self._buffer, self._inside)
        self._buffer = ""
        return [rest] if rest.text else []

    def _find_opening_tag(self) -> None:
        start = self._buffer.lstrip()
        if start.startswith(OPENS):
            self._inside, self._buffer = True, start[len(OPENS) :].lstrip("\n")
        elif not OPENS.startswith(start):
            self._answering = True

    def _reasoning(self) -> OutputPiece:
        """Take the reasoning off the buffer, except for the beginning of a closing tag."""
        text, closes, rest = self._buffer.partition(CLOSES)
        end = len(text) if closes else len(text) - overlap(text, CLOSES)
        self._buffer = rest if closes else text[end:]
        if closes:
            self._inside, self._answering, self._skips_blanks = False, True, True
        return OutputPiece(text[:end], is_reasoning=True)


def split(text: str, inside: bool = False) -> tuple[str, str]:
    """Return the reasoning and the answer of a complete output, without the blanks around the reasoning."""
    parser = ReasoningParser(inside)
    pieces = [*parser.push(text), *parser.end()]
    reasoning = "".join(piece.text for piece in pieces if piece.is_reasoning)
    return reasoning.strip(), "".join(piece.text for piece in pieces if not piece.is_reasoning)
