"""The events of an agent at work on a task."""

from __future__ import annotations

from typing import NamedTuple

from localspec.output.tool_calls import Call
from localspec.runtime.answer import Answer

ANSWER, MAX_STEPS, REPEATED, LENGTH = "answer", "max_steps", "repeated", "length"  # why a task finished
UNVERIFIED = "unverified"  # or: the model said that it is done, and a check says that it is not


class TextEvent(NamedTuple):
    """A piece of the model's text or reasoning."""

    text: str
    is_reasoning: bool = False


class WaitingEvent(NamedTuple):
    """Nothing to show yet: the model reads the prompt (0), or has written `characters` of a call.

    `call` is the beginning of that call, as far as it is known: its tool and its first argument.
    """

    characters: int
    call: str = ""


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
    attached: str = ""  # files that the model gets with the result, because a program named them
    names: tuple[str, ...] = ()  # of those files


class CheckEvent(NamedTuple):
    """Tests that are run for a task without a call of the model; `result` is None before they have run.

    `told` is what the model gets with the result of its last call.
    """

    call: Call
    result: ToolResultEvent | None = None
    told: str = ""


class NotCheckedEvent(NamedTuple):
    """The reason why a task ends without all of its tests."""

    reason: str


class PromptEvent(NamedTuple):
    """The text that the model gets as its task: with files, and with what failing tests print."""

    text: str


class NotYetEvent(NamedTuple):
    """The call with which the model wanted to end the task, and the reason why the task goes on."""

    call: Call
    reason: str
    attached: str


class StartOverEvent(NamedTuple):
    """A new attempt at the task: why the last one failed, and the files whose changes were undone."""

    reason: str
    restored: tuple[str, ...]


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
    | CheckEvent
    | NotCheckedEvent
    | PromptEvent
    | NotYetEvent
    | StartOverEvent
    | AnswerEvent
    | DroppedResultsEvent
    | FinishedEvent
)
