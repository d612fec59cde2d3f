"""The events of an agent at work on a task."""

from __future__ import annotations

from typing import NamedTuple

from localspec.output.tool_calls import Call
from localspec.runtime.answer import Answer

ANSWER, MAX_STEPS, REPEATED, LENGTH = "answer", "max_steps", "repeated", "length"  # why a task finished


class TextEvent(NamedTuple):
    """A piece of the model's text or reasoning."""

    text: str
    is_reasoning: bool = False


class WaitingEvent(NamedTuple):
    """Nothing to show yet: the model reads the prompt (0), or has written `characters` of a call."""

    characters: int


class ToolCallEvent(NamedTuple):
    """A call that the model made, before it is allowed and run."""

    call: Call


class ToolResultEvent(NamedTuple):
    """The result of a call, or the reason of its failure."""

    call: Call
    text: str
    failed: bool
    allowed: bool
    seconds: float


class AnswerEvent(NamedTuple):
    """The end of one answer of the model."""

    answer: Answer


class DroppedResultsEvent(NamedTuple):
    """Tool results were dropped from the conversation, because the context was full."""

    results: int


class FinishedEvent(NamedTuple):
    """The end of the task: why, and the final answer."""

    reason: str
    text: str


Event = (
    TextEvent
    | WaitingEvent
    | ToolCallEvent
    | ToolResultEvent
    | AnswerEvent
    | DroppedResultsEvent
    | FinishedEvent
)
