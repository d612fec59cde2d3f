"""The bodies of requests. A field that is not here is refused by its name, so none is ignored."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from localspec.errors import BadValue
from localspec.output import grammar
from localspec.pictures.messages import IMAGES
from localspec.serve.duration import seconds_of
from localspec.serve.fields import Strict, given
from localspec.serve.generation import Message, Request


class Function(Strict):
    """A function that is called, with its arguments."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ToolCall(Strict):
    """A call that an earlier answer has made."""

    function: Function


class ChatMessage(Strict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: list[str] | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None

    def plain(self) -> Message:
        """Return the message as chat templates take it."""
        message: Message = {"role": self.role, "content": self.content}
        if self.images:
            message[IMAGES] = self.images
        if self.thinking:
            message["reasoning_content"] = self.thinking
        if self.tool_name:
            message["name"] = self.tool_name
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": call.function.model_dump()} for call in self.tool_calls
            ]
        return message


class Tool(Strict):
    """A tool that the model may call, as in chat templates."""

    type: Literal["function"] = "function"
    function: dict[str, Any]


class Options(Strict):
    """Settings of the model."""

    temperature: float | None = Field(default=None, ge=0)
    top_k: int | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repeat_penalty: float | None = Field(default=None, gt=0)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = Field(default=None, ge=0)
    num_predict: int | None = Field(default=None, ge=-1)
    num_ctx: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling settings that the client set."""
        names = {name: name for name in ("temperature", "top_k", "top_p", "min_p")}
        names |= {"repeat_penalty": "repetition_penalty"}
        names |= {name: name for name in ("presence_penalty", "frequency_penalty")}
        return given({ours: getattr(self, name) for name, ours in names.items()})


class Asked(Strict):
    """What both kinds of request share."""

    model: str
    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options = Field(default_factory=Options)
    keep_alive: float | str | None = None

    @property
    def seconds(self) -> float | None:
        """How long the model stays, None for as long as any."""
        return None if self.keep_alive is None else seconds_of(str(self.keep_alive), "keep_alive")

    def _request(self, **more: Any) -> Request:
        options = self.options
        constraint = {"type": "object"} if self.format == "json" else self.format
        return Request(
            sampling=options.sampling,
            seed=options.seed,
            max_tokens=None if options.num_predict in (None, -1) else options.num_predict,
            stop=[options.stop] if isinstance(options.stop, str) else options.stop or [],
            grammar=grammar.from_schema(constraint, "format") if constraint else None,
            **more,
        )


class Chat(Asked):
    """The body of `/api/chat`."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[Tool] | None = None

    def request(self) -> Request:
        """Return the request to the model; raises BadValue for `format` beside tools."""
        if self.tools and self.format:
            raise BadValue("`format` and `tools` exclude each other", "Leave one of them out")
        tools = [tool.model_dump() for tool in self.tools or ()]
        return self._request(messages=[message.plain() for message in self.messages], tools=tools)


class Generate(Asked):
    """The body of `/api/generate`."""

    prompt: str = ""  # none loads the model, or unloads it with `keep_alive` 0
    images: list[str] | None = None
    system: str | None = None
    raw: bool = False

    def request(self) -> Request:
        """Return the request to the model; raises BadValue for a system prompt of a raw text."""
        if self.raw:
            if self.system or self.images:
                name = "system` prompt" if self.system else "images`"
                raise BadValue(f"`raw` takes no `{name}", "Leave one of them out")
            return self._request(text=self.prompt)
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        asked: Message = {"role": "user", "content": self.prompt}
        return self._request(messages=[*system, asked | ({IMAGES: self.images} if self.images else {})])


class Named(Strict):
    """The body of `/api/show`."""

    model: str
    verbose: bool = False
