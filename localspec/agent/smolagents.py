"""A localspec model for the smolagents library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from localspec import plugins
from localspec.agent.loop import DEFAULT_MAX_TOKENS, tool_format_of
from localspec.agent.turn import Turn, parse_turn
from localspec.chat import opens_thought
from localspec.core.sampler import Sampling
from localspec.errors import MissingExtra, PromptError
from localspec.library import Library, Silent
from localspec.output import grammar
from localspec.output.reasoning import split
from localspec.runtime.answer import Answer
from localspec.runtime.choice import Choice, sampling_of
from localspec.runtime.generation import Runtime

if TYPE_CHECKING:
    from smolagents import Model


def smolagents_model(
    name: str,
    *,
    draft: str = "auto",
    engine: str = "auto",
    device: str | None = None,
    threads: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    prompt_cache: float = 2.0,
) -> Model:
    """Return the model called `name` as a smolagents `Model`, with its draft.

    Grammars constrain calls to the tools, and answers to a JSON schema if smolagents asks for one. The prompt
    cache takes up to `prompt_cache` gigabytes of disk; 0 turns it off. Raises MissingExtra without
    smolagents, and the errors of loading a model.
    """
    _require_smolagents()
    choice = Choice(engine, draft, device=device, threads=threads)
    choice.check()
    settings = {} if temperature is None else {"temperature": temperature}
    sampling_of({}, settings)
    runtime = Runtime.load(name, choice, Library(), Silent(), prompt_cache_bytes=int(1e9 * prompt_cache))
    sampling = sampling_of(runtime.model.sampling_defaults() if temperature is None else {}, settings)
    return _as_model(name, runtime, _Answerer(runtime, sampling, seed, max_tokens))


def _require_smolagents() -> None:
    try:
        import smolagents  # noqa: F401
    except ImportError:
        raise MissingExtra("smolagents", "agent") from None


def _as_model(name: str, runtime: Runtime, answerer: _Answerer) -> Model:
    from smolagents import ChatMessage, Model

    class LocalspecModel(Model):  # type: ignore[misc]
        """The model, one answer at a time."""

        def __init__(self) -> None:
            super().__init__(flatten_messages_as_text=True, model_id=name)
            self.runtime = runtime

        def generate(
            self,
            messages: list[Any],
            stop_sequences: list[str] | None = None,
            response_format: dict[str, Any] | None = None,
            tools_to_call_from: list[Any] | None = None,
            **others: Any,
        ) -> ChatMessage:
            """Answer; with tools to call from, the answer is calls of them."""
            request = self._prepare_completion_kwargs(
                messages, stop_sequences, response_format, tools_to_call_from, **others
            )
            if tools := request.get("tools"):
                return _message(*answerer.call_tools(request["messages"], tools))
            return _message(*answerer.answer_text(request["messages"], stop_sequences or (), response_format))

    return LocalspecModel()


def _message(answer: Answer, turn: Turn) -> Any:
    """Return an answer as a smolagents `ChatMessage`."""
    from smolagents import ChatMessage
    from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
    from smolagents.monitoring import TokenUsage

    calls = [
        ChatMessageToolCall(
            function=ChatMessageToolCallFunction(name=call.name, arguments=call.arguments),
            id=f"call{number}",
            type="function",
        )
        for number, call in enumerate(turn.calls)
    ]
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        content=turn.text,
        tool_calls=calls or None,
        raw=answer,
        token_usage=TokenUsage(answer.prompt_tokens, len(answer.token_ids)),
    )


@dataclass(frozen=True, slots=True)
class _Answerer:
    """Answers conversations with text, JSON or tool calls."""

    runtime: Runtime
    sampling: Sampling
    seed: int | None
    max_tokens: int

    def answer_text(
        self, messages: list[Any], stop: Sequence[str], response_format: Mapping[str, Any] | None
    ) -> tuple[Answer, Turn]:
        """Return an answer in text, or in JSON of the schema in `response_format`."""
        constraint = None
        if response_format and "json_schema" in response_format:
            constraint = grammar.from_schema(response_format["json_schema"]["schema"], "response_format")
        prompt = self.runtime.model.encode_chat(messages)
        marks = self.runtime.thought_marks
        answer, steps = self.runtime.answer(
            prompt, **self._settings(), stop=stop, grammar=constraint, marks=marks.tokens
        )
        with closing(steps):
            for _ in steps:
                pass
        inside = opens_thought(self.runtime, prompt) and constraint is None
        reasoning, text = split(answer.text, inside, marks, answer.marks)
        return answer, Turn(text, reasoning)

    def call_tools(self, messages: list[Any], tools: list[dict[str, Any]]) -> tuple[Answer, Turn]:
        """Return an answer of calls of `tools`; raises PromptError without a chat template."""
        template = self.runtime.model.template()
        if template is None:
            raise PromptError(
                f"`{self.runtime.model.name}` has no chat template, which tools need",
                "Choose a model that was trained to chat",
            )
        name = tool_format_of(template.with_tools or template.source)
        tool_format = plugins.part("tool_formats", name).made_by()
        render = partial(tool_format.render, template.render)
        prompt = self.runtime.model.encode_chat(messages, tools, render)
        inside = opens_thought(self.runtime, prompt)
        token_id = self.runtime.tokenizer.token_to_id
        constraint = tool_format.grammar(tools, token_id, must=True, inside=inside)
        marks = self.runtime.thought_marks
        answer, steps = self.runtime.answer(
            prompt, **self._settings(), grammar=constraint, special=True, marks=marks.tokens
        )
        turn = Turn()
        with closing(steps):
            list(parse_turn(((step.text, step.marks) for step in steps), tool_format, turn, inside, marks))
        return answer, turn

    def _settings(self) -> dict[str, Any]:
        return {"sampling": self.sampling, "seed": self.seed, "max_tokens": self.max_tokens}
