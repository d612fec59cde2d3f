"""Parser for a whole answer: reasoning, text and tool calls, told apart as they stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from localspec.output.reasoning import OutputPiece, ReasoningParser
from localspec.output.tool_calls import Call, ToolCallParser

Part = OutputPiece | Call


class AnswerParser:
    """Tells reasoning, text and calls of an answer apart.

    Without a parser of `reasoning` or of `calls`, what that parser would find is text.
    """

    def __init__(self, reasoning: ReasoningParser | None, calls: ToolCallParser | None) -> None:
        self._reasoning, self._calls = reasoning, calls

    def push(self, text: str, marks: Sequence[int] = ()) -> Iterator[Part]:
        """Take in a step's text and the places of its marks; yield what is complete."""
        if self._reasoning is None:
            yield from self._answered(text)
        else:
            yield from self._told_apart(self._reasoning.push(text, marks))

    def end(self) -> Iterator[Part]:
        """Yield the rest, once the answer has ended."""
        if self._reasoning is not None:
            yield from self._told_apart(self._reasoning.end())
        if self._calls is not None:
            yield from _parts(self._calls.end())

    def _told_apart(self, pieces: Iterable[OutputPiece]) -> Iterator[Part]:
        for piece in pieces:
            yield from [piece] if piece.is_reasoning else self._answered(piece.text)

    def _answered(self, text: str) -> Iterator[Part]:
        yield from _parts(self._calls.push(text) if self._calls is not None else [text])


def _parts(parts: Iterable[str | Call]) -> Iterator[Part]:
    for part in parts:
        if isinstance(part, Call):
            yield part
        elif part:
            yield OutputPiece(part)
