"""One answer of a model with tools: its text, its reasoning and its calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.agent.events import TextEvent, WaitingEvent
from localspec.agent.partial_call import call_so_far
from localspec.output.answer_parser import AnswerParser, Part
from localspec.output.reasoning import ReasoningParser, ThoughtMarks
from localspec.output.tool_calls import Call
from localspec.output.tool_format import ToolFormat


@dataclass(slots=True)
class Turn:
    """The parsed part of one answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, part: Part) -> Iterator[TextEvent]:
        """Add a part of the answer; yield its text."""
        if isinstance(part, Call):
            self.calls.append(part)
            return
        if part.is_reasoning:
            self.reasoning += part.text
        else:
            self.text += part.text
        yield TextEvent(part.text, part.is_reasoning)

    def message(self) -> dict[str, Any]:
        """Return the answer as a message for chat templates."""
        calls = [
            {
                "id": call_id(number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(self.calls)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": self.text.strip()}
        message |= {"reasoning_content": self.reasoning.strip()} if self.reasoning.strip() else {}
        return message | ({"tool_calls": calls} if calls else {})


def call_id(number: int) -> str:
    """Return the id of a turn's call: nine characters, as Mistral's templates require."""
    return f"call{number:05d}"


def parse_turn(
    pieces: Iterable[tuple[str, Sequence[int]]],
    tool_format: ToolFormat,
    turn: Turn,
    inside: bool,
    marks: ThoughtMarks | None = None,
) -> Iterator[TextEvent | WaitingEvent]:
    """Parse a streamed answer into `turn`, and yield its text; `inside` tells that it begins in reasoning.

    A piece is a step's text and the places of its marks.
    """
    parser = AnswerParser(ReasoningParser(inside, marks), tool_format.parser())
    pending = ""  # the text that nothing was shown of
    for piece, places in pieces:
        pending += piece
        for part in parser.push(piece, places):
            pending = ""
            yield from turn.add(part)
        if pending:
            yield WaitingEvent(len(pending), call_so_far(pending))
    for part in parser.end():
        yield from turn.add(part)
