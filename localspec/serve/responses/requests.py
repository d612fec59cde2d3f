"""The body of `/v1/responses`. A field that is not here is refused by its name, so none is ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from localspec.errors import BadValue, printable
from localspec.output import grammar
from localspec.serve.fields import Strict, given, offered
from localspec.serve.generation import Message, Request, ToolChoice
from localspec.serve.responses.items import InputItem, messages_of


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _not_kept(value: Any) -> Any:
    if value:
        raise PydanticCustomError("kept", "No response is kept: send the whole conversation")
    return None


def _own(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise PydanticCustomError("tool", "The tool `{kind}` is not supported", {"kind": printable(kind)})
    return value


Unkept = Annotated[Any, BeforeValidator(_not_kept)]


class FunctionTool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # the grammar of calls is always strict

    def plain(self) -> dict[str, Any]:
        """Return the tool as chat templates take it."""
        empty = {"type": "object", "properties": {}}
        told = given({"name": self.name, "description": self.description})
        return {"type": "function", "function": {**told, "parameters": self.parameters or empty}}


class NamedTool(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Strict):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def grammar(self) -> str | None:
        """Return the source of the constraint, None for text; raises BadValue for a wrong schema."""
        if self.type == "text":
            return None
        if self.type == "json_schema" and self.schema_ is None:
            raise BadValue("`text.format` has no `schema`", None)
        return grammar.from_schema(self.schema_ or {"type": "object"}, "text.format")


class TextOptions(Strict):
    """The options of an answer's text."""

    format: TextFormat = Field(default_factory=lambda: TextFormat(type="text"))


class Reasoning(Strict):
    """The options of reasoning: a response has all of it, and the model decides how long it reasons."""

    summary: Literal["auto"] | None = None


class CreateResponse(Strict):
    """The body of `/v1/responses`."""

    model: str
    input: Annotated[list[InputItem], Field(min_length=1), BeforeValidator(_as_items)]
    instructions: str | None = None
    tools: list[Annotated[FunctionTool, BeforeValidator(_own)]] | None = None
    tool_choice: ToolChoice | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions = Field(default_factory=TextOptions)
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool | None = None
    store: Unkept = None
    previous_response_id: Unkept = None
    background: Unkept = None
    truncation: Literal["disabled"] | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None  # reasoning comes as text
    reasoning: Reasoning | None = None
    metadata: dict[str, str] | None = None
    client_metadata: dict[str, Any] | None = None  # Codex tells itself which turn it is
    prompt_cache_key: str | None = None  # the KV cache keeps all prompts anyway
    user: str | None = None  # names the client's user; nothing depends on it
    safety_identifier: str | None = None  # the same

    def request(self) -> Request:
        """Return the request to the model; raises BadValue for what the fields do not allow together."""
        tools = [tool.plain() for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool):
            tools, choice = offered(tools, "required", self.tool_choice.name)
        else:
            tools, choice = offered(tools, self.tool_choice or "auto")
        constraint = self.text.format.grammar()
        if constraint and tools and choice != "none":
            raise BadValue("`text.format` and `tools` exclude each other", "Leave one of them out")
        system: Message = {"role": "system", "content": self.instructions}
        return Request(
            messages=[*([system] if self.instructions else []), *messages_of(self.input)],
            tools=tools,
            tool_choice=choice,
            sampling=given({"temperature": self.temperature, "top_p": self.top_p}),
            max_tokens=self.max_output_tokens,
            grammar=constraint,
        )

    def told(self) -> dict[str, Any]:
        """Return what a response repeats of its request."""
        body = self.model_dump(by_alias=True, exclude_none=True)
        names = ("instructions", "max_output_tokens", "temperature", "top_p", "metadata", "user")
        return {name: body.get(name) for name in names} | {
            "model": self.model,
            "tools": body.get("tools", []),
            "tool_choice": body.get("tool_choice", "auto"),
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "text": body["text"],
            "store": False,
            "previous_response_id": None,
            "truncation": "disabled",
        }
