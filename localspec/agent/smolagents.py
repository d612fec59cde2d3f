"""A localspec model for the smolagents library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from localspec import plugins
from localspec.agent.loop import TOKENS, Turn, chosen, reading
from localspec.chat import opens_thought, sampling_of
from localspec.core.sampler import Sampling
from localspec.errors import MissingExtra, PromptError
from localspec.library import Library, Silent
from localspec.output import grammar
from localspec.output.reasoning import split
from localspec.runtime.generation import Answer, Runtime
from localspec.runtime.resolution import Choice

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
    max_tokens: int = TOKENS,
    prompt_cache: float = 2.0,
) -> Model:
    """Return the model called `name` as a smolagents `Model`, with its draft.

    Calls are held to the grammar of the tools, and answers to a JSON schema where smolagents asks for one. Of
    what long prompts were read to, `prompt_cache` gigabytes stay on disk, 0 for none.
    Raises MissingExtra without smolagents, and what loading a model raises.
    """
    try:
        from smolagents import ChatMessage, Model
        from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
        from smolagents.monitoring import TokenUsage
    except ImportError:
        raise MissingExtra("smolagents", "agent") from None
    choice = Choice(engine, draft, device=device, threads=threads)
    choice.check()
    given = {} if temperature is None else {"temperature": temperature}
    sampling_of({}, given)
    runtime = Runtime(name, choice, Library(), Silent(), prompts=int(1e9 * prompt_cache))
    sampling = sampling_of(runtime.model.generation() if temperature is None else {}, given)
    speaker = _Speaker(runtime, sampling, seed, max_tokens)

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
            asked = self._prepare_completion_kwargs(
                messages, stop_sequences, response_format, tools_to_call_from, **others
            )
            if tools := asked.get("tools"):
                answer, turn = speaker.call(asked["messages"], tools)
            else:
                answer, turn = speaker.say(asked["messages"], stop_sequences or (), response_format)
            calls = [
                ChatMessageToolCall(
                    function=ChatMessageToolCallFunction(name=call.name, arguments=call.arguments),
                    id=f"call{at}",
                    type="function",
                )
                for at, call in enumerate(turn.calls)
            ]
            return ChatMessage(
                role=MessageRole.ASSISTANT,
                content=turn.said,
                tool_calls=calls or None,
                raw=answer,
                token_usage=TokenUsage(answer.prompt_tokens, len(answer.token_ids)),
            )

    return LocalspecModel()


class _Speaker:
    """Answers conversations in words, JSON or calls."""

    def __init__(self, runtime: Runtime, sampling: Sampling, seed: int | None, max_tokens: int) -> None:
        self._runtime = runtime
        self._sampling = sampling
        self._seed = seed
        self._max_tokens = max_tokens
        self._template = runtime.model.template()

    def say(
        self, messages: list[Any], stop: Sequence[str], response_format: Mapping[str, Any] | None
    ) -> tuple[Answer, Turn]:
        """Return an answer in words, or in JSON of the schema that is asked for."""
        form = None
        if response_format and "json_schema" in response_format:
            form = grammar.of_schema(response_format["json_schema"]["schema"], "response_format")
        prompt = self._runtime.model.encode_chat(messages)
        answer, steps = self._runtime.answer(prompt, **self._given(), stop=stop, grammar=form)
        with closing(steps):
            text = "".join(last.text for last in steps)
        thought, said = split(text, opens_thought(self._runtime, prompt) and form is None)
        return answer, Turn(said, thought)

    def call(self, messages: list[Any], tools: list[dict[str, Any]]) -> tuple[Answer, Turn]:
        """Return an answer that is calls of `tools`; raises PromptError without a chat template."""
        template = self._template
        if template is None:
            raise PromptError(
                f"`{self._runtime.model.name}` has no chat template, which tools need",
                "Choose a model that was trained to chat",
            )
        tool_format = plugins.part("tool_formats", chosen(template.with_tools or template.source)).made_by()
        prompt = self._runtime.encode(tool_format.render(template.render, messages, tools), raw=False)
        inside = opens_thought(self._runtime, prompt)
        form = tool_format.grammar(tools, self._runtime.tokenizer.token_to_id, must=True, inside=inside)
        answer, steps = self._runtime.answer(prompt, **self._given(), grammar=form, special=True)
        turn = Turn()
        with closing(steps):
            list(reading((last.text for last in steps), tool_format, turn, inside))
        return answer, turn

    def _given(self) -> dict[str, Any]:
        return {"sampling": self._sampling, "seed": self._seed, "max_tokens": self._max_tokens}
