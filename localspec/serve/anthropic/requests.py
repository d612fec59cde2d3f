"""The bodies of requests. A field that is not here is refused by its name, so none is ignored."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec.errors import BadValue
from localspec.serve.fields import Strict, given
from localspec.serve.generation import Message, Request, ToolChoice


class CacheControl(Strict):
    """A place up to which the client wants the prompt cached: the KV cache keeps all of it anyway."""

    type: Literal["ephemeral"]
    ttl: str | None = None


class TextBlock(Strict):
    """A text."""

    type: Literal["text"]
    text: str
    citations: None = None
    cache_control: CacheControl | None = None


class ToolUse(Strict):
    """A call that an earlier answer has made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolResult(Strict):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] = ""
    is_error: bool = False
    cache_control: CacheControl | None = None


class Thinking(Strict):
    """The reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


Block = Annotated[TextBlock | ToolUse | ToolResult | Thinking, Field(discriminator="type")]


class ChatMessage(Strict):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]  # the last within a conversation, as agents send it
    content: str | list[Block]

    def plain(self) -> list[Message]:
        """Return the message as chat templates take it: results of tools are messages of their own."""
        if isinstance(self.content, str):
            return [{"role": self.role, "content": self.content}]
        results: list[Message] = [
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": text_of(block.content)}
            for block in self.content
            if isinstance(block, ToolResult)
        ]
        text = "".join(block.text for block in self.content if isinstance(block, TextBlock))
        calls = [
            {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": block.input}}
            for block in self.content
            if isinstance(block, ToolUse)
        ]
        thoughts = "".join(block.thinking for block in self.content if isinstance(block, Thinking))
        message: Message = {"role": self.role, "content": text}
        message |= {"tool_calls": calls} if calls else {}
        message |= {"reasoning_content": thoughts} if thoughts else {}
        return [*results, *([message] if text or calls or not results else [])]


class Tool(Strict):
    """A tool that the model may call."""

    type: Literal["custom", None] = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    cache_control: CacheControl | None = None

    def plain(self) -> dict[str, Any]:
        """Return the tool as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": {key: it for key, it in function.items() if it is not None}}


class Choice(Strict):
    """Whether the model must call a tool, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(Strict):
    """The name of the client's user; nothing depends on it."""

    user_id: str | None = None


class Prompt(Strict):
    """The fields of both paths."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None

    def request(self) -> Request:
        """Return the request to the model; raises BadValue for a choice of a tool that is not there."""
        tools = [tool.plain() for tool in self.tools or ()]
        kind = self.tool_choice.type if self.tool_choice else "auto"
        if self.tool_choice is not None and kind == "tool":
            tools = [tool for tool in tools if tool["function"]["name"] == self.tool_choice.name]
        choices: dict[str, ToolChoice] = {"any": "required", "tool": "required", "none": "none"}
        choice = choices.get(kind, "auto")
        if choice == "required" and not tools:
            raise BadValue("`tool_choice` asks for a call, and `tools` has no such tool", None)
        system: list[Message] = [{"role": "system", "content": text_of(self.system)}] if self.system else []
        messages = [plain for message in self.messages for plain in message.plain()]
        return Request(messages=[*system, *messages], tools=tools, tool_choice=choice)


class Count(Prompt):
    """The body of `/v1/messages/count_tokens`."""


class Messages(Prompt):
    """The body of `/v1/messages`."""

    max_tokens: int = Field(ge=1)
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    stop_sequences: list[str] = Field(default_factory=list)
    metadata: Metadata | None = None

    def request(self) -> Request:
        """Return the request to the model."""
        sampling = given({name: getattr(self, name) for name in ("temperature", "top_p", "top_k")})
        return replace(
            super().request(),
            sampling=sampling,
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
        )


def text_of(content: str | list[TextBlock]) -> str:
    """Return the text of a content."""
    return content if isinstance(content, str) else "".join(block.text for block in content)
