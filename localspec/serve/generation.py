"""One request to a model: a conversation or a text, and the answer as events."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from localspec import plugins
from localspec.agent.loop import tool_format_of
from localspec.chat import opens_thought, sampling_of
from localspec.core.sampler import Sampling
from localspec.core.types import shared_prefix
from localspec.errors import BadValue
from localspec.output.reasoning import OutputPiece, ReasoningParser
from localspec.output.tool_calls import Call, ToolCallParser
from localspec.output.tool_format import ToolFormat
from localspec.runtime.answer import Answer
from localspec.runtime.generation import Runtime

Message = dict[str, Any]
ToolChoice = Literal["auto", "required", "none"]


@dataclass(frozen=True)
class Request:
    """What a client asks of a model: the messages of a conversation, or the `text` to continue.

    `sampling` holds what the client set, the model's own generation config the rest. `grammar` is the source
    of a constraint (output/grammar.py). `tools` are as in chat templates; `tool_choice` "required" allows
    nothing but calls.
    """

    messages: Sequence[Message] = ()
    text: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = "auto"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    grammar: str | None = None


class Text(NamedTuple):
    """A part of the answer's text, or of its reasoning."""

    text: str
    is_reasoning: bool = False


class Begin(NamedTuple):
    """The answer begins: it can fail no more for what was asked."""


class End(NamedTuple):
    """The answer has ended; `cached` tokens of its prompt were in the KV cache."""

    answer: Answer
    cached: int


Event = Begin | Text | Call | End


def generate(runtime: Runtime, request: Request, prompt: list[int]) -> Generator[Event, None, None]:
    """Yield the answer to a request with its `prompt`; closing the iterator interrupts it.

    Raises the errors of `Runtime.answer`, and BadValue for tools without a chat template.
    """
    tool_format = _tool_format(runtime, request)
    inside = request.text is None and opens_thought(runtime, prompt)
    grammar = request.grammar
    if tool_format and request.tool_choice == "required":
        token_id = runtime.tokenizer.token_to_id
        grammar = tool_format.grammar(request.tools, token_id, must=True, inside=inside)
    marks = runtime.thought_marks if request.text is None and not request.grammar else None
    cached = shared_prefix(prompt, runtime.target.tokens)
    answer, steps = runtime.answer(
        prompt,
        sampling=_sampling(runtime.model.sampling_defaults(), dict(request.sampling)),
        seed=request.seed,
        max_tokens=request.max_tokens,
        stop=request.stop,
        grammar=grammar,
        special=tool_format is not None,
        marks=marks.tokens if marks else None,
        loop_guard=True,
    )
    yield Begin()
    parser = _Parser(
        ReasoningParser(inside, marks) if marks else None, tool_format.parser() if tool_format else None
    )
    with closing(steps):
        for step in steps:
            yield from parser.push(step.text, step.marks)
    yield from parser.end()
    yield End(answer, max(cached, answer.cached_prompt_tokens))


def _sampling(defaults: dict[str, Any], asked: dict[str, Any]) -> Sampling:
    """Return the sampling settings; those that do nothing in greedy decoding are left out.

    Clients send them as a matter of course, so they are no mistake as on the command line.
    """
    usual = defaults.get("temperature", 1.0) if defaults.get("do_sample") else 0.0
    if not asked.get("temperature", usual):
        asked = {name: value for name, value in asked.items() if name not in ("top_k", "top_p", "min_p")}
    return sampling_of(defaults, asked)


class _Parser:
    """Tells reasoning, text and calls of an answer apart."""

    def __init__(self, reasoning: ReasoningParser | None, calls: ToolCallParser | None) -> None:
        self._reasoning, self._calls = reasoning, calls

    def push(self, text: str, marks: Sequence[int]) -> Iterator[Event]:
        """Take in a step's text and the places of its marks; yield what is complete."""
        if self._reasoning is None:
            yield from self._said(text)
        else:
            yield from self._told(self._reasoning.push(text, marks))

    def end(self) -> Iterator[Event]:
        """Yield what is left."""
        if self._reasoning is not None:
            yield from self._told(self._reasoning.end())
        if self._calls is not None:
            yield from self._parts(self._calls.end())

    def _told(self, pieces: Iterable[OutputPiece]) -> Iterator[Event]:
        for piece in pieces:
            yield from [Text(piece.text, is_reasoning=True)] if piece.is_reasoning else self._said(piece.text)

    def _said(self, text: str) -> Iterator[Event]:
        if self._calls is not None:
            yield from self._parts(self._calls.push(text))
        elif text:
            yield Text(text)

    @staticmethod
    def _parts(parts: Iterable[str | Call]) -> Iterator[Event]:
        for part in parts:
            yield part if isinstance(part, Call) else Text(part)


def prompt_of(runtime: Runtime, request: Request) -> list[int]:
    """Return the tokens of a request's prompt; raises BadValue for tools without a chat template."""
    tool_format = _tool_format(runtime, request)
    if request.text is not None:
        return runtime.encode(request.text, raw=True)
    template = runtime.model.template()
    if tool_format is None or template is None:
        return runtime.model.encode_chat(request.messages)
    render = partial(tool_format.render, template.render)
    return runtime.model.encode_chat(request.messages, request.tools, render)


def _tool_format(runtime: Runtime, request: Request) -> ToolFormat | None:
    if not request.tools or request.tool_choice == "none":
        return None
    template = runtime.model.template()
    if template is None:
        raise BadValue(f"`{runtime.model.name}` has no chat template, so it takes no `tools`", None)
    name = tool_format_of(template.with_tools or template.source)
    made: ToolFormat = plugins.part("tool_formats", name).made_by()
    return made
