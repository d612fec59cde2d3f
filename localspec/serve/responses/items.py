"""The items of a request's input: messages, reasoning, calls, and their results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from localspec.serve.fields import Strict, arguments_of
from localspec.serve.generation import Message


class TextPart(Strict):
    """A part of a content, as clients write it or as an answer had it."""

    type: Literal["input_text", "output_text", "reasoning_text", "summary_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


def _as_parts(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Content = Annotated[list[TextPart], BeforeValidator(_as_parts)]


class Item(Strict):
    """The fields that every item may have."""

    id: str | None = None
    status: str | None = None


class MessageItem(Item):
    """A message of a conversation."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    def add(self, messages: list[Message]) -> None:
        """Add it to the messages that chat templates take."""
        if self.role == "assistant":
            own = _turn(messages, unless="content")
            own["content"] = text_of(self.content)
        else:
            role = "system" if self.role == "developer" else self.role
            messages.append({"role": role, "content": text_of(self.content)})


class ReasoningItem(Item):
    """The reasoning before an earlier answer."""

    type: Literal["reasoning"]
    summary: list[TextPart] = Field(default_factory=list)
    content: Content = Field(default_factory=list)
    encrypted_content: None = None

    def add(self, messages: list[Message]) -> None:
        """Add it to the messages that chat templates take."""
        if thought := text_of(self.content or self.summary):
            _turn(messages, unless="content")["reasoning_content"] = thought


class FunctionCall(Item):
    """A call that an earlier answer has made, with its arguments as JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = "{}"

    def add(self, messages: list[Message]) -> None:
        """Add it to the messages that chat templates take; raises BadValue for wrong arguments."""
        function = {"name": self.name, "arguments": arguments_of(self.name, self.arguments)}
        call = {"id": self.call_id, "type": "function", "function": function}
        _turn(messages).setdefault("tool_calls", []).append(call)


class FunctionResult(Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content

    def add(self, messages: list[Message]) -> None:
        """Add it to the messages that chat templates take."""
        messages.append({"role": "tool", "tool_call_id": self.call_id, "content": text_of(self.output)})


def _kind(value: Any) -> str:
    return str(value.get("type") or "message") if isinstance(value, dict) else "message"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionResult, Tag("function_call_output")],
    Discriminator(
        _kind, custom_error_type="item", custom_error_message="An item of this type is not supported"
    ),
]


def messages_of(items: Iterable[InputItem]) -> list[Message]:
    """Return a conversation as chat templates take it: one message for each turn of the model.

    Raises BadValue for the arguments of a call that are no JSON object.
    """
    messages: list[Message] = []
    for item in items:
        item.add(messages)
    return [{"content": "", **message} for message in messages]


def _turn(messages: list[Message], unless: str = "") -> Message:
    """Return the model's turn that the last items began, a new one if that has the part `unless` already."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or unless in last or (unless and "tool_calls" in last):
        messages.append({"role": "assistant"})
    return messages[-1]


def text_of(parts: Iterable[TextPart]) -> str:
    """Return the text of a content."""
    return "".join(part.text for part in parts)
