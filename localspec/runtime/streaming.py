"""The text of an answer as a stream."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from localspec.output.reasoning import OutputPiece, ReasoningParser

if TYPE_CHECKING:
    from localspec.core.types import Step
    from localspec.runtime.generation import Answer


class AnswerStream:
    """The text of an answer as the model writes it; `answer` fills up meanwhile.

    Iterating yields the answer without its reasoning. Leaving the loop early and calling `close` interrupts
    the answer; the text so far is kept.
    """

    def __init__(
        self, answer: Answer, steps: Generator[Step, None, None], parser: ReasoningParser | None
    ) -> None:
        self.answer = answer
        self._steps = steps
        self._parser = parser

    def __iter__(self) -> Iterator[str]:
        for step in self._steps:
            yield from self._visible(step)

    def _visible(self, step: Step) -> Iterator[str]:
        """Yield the text of a step that is not reasoning."""
        if self._parser is None:
            pieces = [OutputPiece(step.text)]
        else:
            pieces = self._parser.push(step.text) + (self._parser.end() if step.finish else [])
        yield from (piece.text for piece in pieces if piece.text and not piece.is_reasoning)

    def finish(self) -> Answer:
        """Draw the rest of the answer and return it."""
        with closing(self._steps):
            for _ in self._steps:
                pass
        return self.answer

    def close(self) -> None:
        """Interrupt the answer."""
        self._steps.close()
