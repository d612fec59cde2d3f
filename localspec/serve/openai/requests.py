"""The bodies of requests. A field that is not here is refused by its name, so none is ignored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec.errors import BadValue
from localspec.output import grammar
from localspec.pictures.messages import IMAGES
from localspec.serve.fields import Drafting, Strict, arguments_of, given, offered
from localspec.serve.generation import Message, Request, ToolChoice

MOST = 64  # prompts of a request
TokenId = Annotated[int, Field(ge=0)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ImageUrl(Strict):
    """A picture as a data URL; addresses are refused, because nothing is fetched."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Strict):
    """A picture in a message's content."""

    type: Literal["image_url"]
    image_url: ImageUrl


def text_of(content: str | list[TextPart]) -> str:
    """Return the text of a content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


class Function(Strict):
    """A function that is called, with its arguments as JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(Strict):
    """A call that an earlier answer has made."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class ChatMessage(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | ImagePart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None

    def plain(self) -> Message:
        """Return the message as chat templates take it."""
        role = "system" if self.role == "developer" else self.role
        parts = self.content if isinstance(self.content, list) else []
        texts = [part for part in parts if isinstance(part, TextPart)]
        images = [part.image_url.url for part in parts if isinstance(part, ImagePart)]
        text = self.content if isinstance(self.content, str) else text_of(texts)
        message: Message = {"role": role, "content": text} | ({IMAGES: images} if images else {})
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": arguments_of(call.function.name, call.function.arguments),
                    },
                }
                for call in self.tool_calls
            ]
        return message


class FunctionSchema(Strict):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None  # the grammar of calls is always strict


class Tool(Strict):
    """A tool that the model may call."""

    type: Literal["function"]
    function: FunctionSchema

    def plain(self) -> dict[str, Any]:
        """Return the tool as chat templates take it."""
        function = self.function.model_dump(exclude={"strict"}, exclude_none=True)
        return {"type": "function", "function": function}


class NamedFunction(Strict):
    """The name of a function."""

    name: str


class NamedTool(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Strict):
    """The schema of an answer."""

    name: str = "answer"
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def grammar(self) -> str | None:
        """Return the source of the constraint, None for text; raises BadValue for a wrong schema."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return grammar.from_schema({"type": "object"}, "response_format")
        if self.json_schema is None:
            raise BadValue("`response_format` has no `json_schema`", None)
        return grammar.from_schema(self.json_schema.schema_, "response_format")


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool = False


class Prediction(Strict):
    """The text that the answer is expected to be, for the most part."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """The whole text."""
        return text_of(self.content)


class Sampled(Strict):
    """What both kinds of completion share."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stop: str | list[str] | None = None
    seed: int | None = Field(default=None, ge=0)
    n: int | None = Field(default=None, ge=1, le=8)
    logit_bias: dict[TokenId, Bias] | None = None
    localspec: Drafting = Field(default_factory=Drafting)
    user: str | None = None  # names the client's user; nothing depends on it

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling settings that the client set."""
        names = (
            *("temperature", "top_p", "top_k", "min_p"),
            *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
        )
        return given({name: getattr(self, name) for name in names})

    @property
    def each(self) -> int:
        """The number of answers to a prompt."""
        return self.n or 1

    def _request(self, **more: Any) -> Request:
        """Return a request with the fields that both kinds share."""
        return Request(
            sampling=self.sampling, seed=self.seed, stop=self.stops, **self.localspec.model_dump(), **more
        )

    def _several(self, request: Request) -> list[Request]:
        """Return the requests for `n` answers: a seed counts up from answer to answer."""
        seeds = [None if self.seed is None else self.seed + at for at in range(self.each)]
        return [replace(request, seed=seed) for seed in seeds]

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def stops(self) -> Sequence[str]:
        """The texts at which the answer ends."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChatCompletion(Sampled):
    """The body of `/v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    prediction: Prediction | None = None

    def requests(self) -> list[Request]:
        """Return the requests to the model; raises BadValue for what the fields do not allow together."""
        if self.top_logprobs is not None and not self.logprobs:
            raise BadValue("`top_logprobs` needs `logprobs`", "Set `logprobs` to true")
        tools = [tool.plain() for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool):
            tools, choice = offered(tools, "required", self.tool_choice.function.name)
        else:
            tools, choice = offered(tools, self.tool_choice or "auto")
        constraint = self.response_format.grammar() if self.response_format else None
        if constraint and tools and choice != "none":
            raise BadValue("`response_format` and `tools` exclude each other", "Leave one of them out")
        request = self._request(
            messages=[message.plain() for message in self.messages],
            tools=tools,
            tool_choice=choice,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            grammar=constraint,
            alternatives=(self.top_logprobs or 0) if self.logprobs else None,
            prediction=self.prediction.text if self.prediction else "",
        )
        return self._several(request)


class Completion(Sampled):
    """The body of `/v1/completions`."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST)]
    suffix: str | None = None
    logprobs: int | None = Field(default=None, ge=0, le=5)

    def requests(self) -> list[Request]:
        """Return the requests to the model, `n` for each prompt."""
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        limit = self.max_tokens or 16  # OpenAI's default
        return [
            request
            for prompt in prompts
            for request in self._several(
                self._request(text=prompt, behind=self.suffix, max_tokens=limit, alternatives=self.logprobs)
            )
        ]


class Embeddings(Strict):
    """The body of `/v1/embeddings`."""

    model: str
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
