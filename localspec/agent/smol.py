"""A localspec model for the smolagents library."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from localspec import grammar, plugins
from localspec.agent.loop import TOKENS, Turn, chosen, reading
from localspec.chat import opens_thought, sampling_of
from localspec.choosing import Choice
from localspec.errors import MissingExtra
from localspec.library import Library, Silent
from localspec.runtime import Runtime

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
) -> Model:
    """Return the model called `name` as a smolagents `Model`, with its draft.

    Calls are held to the grammar of the tools, and answers to a JSON schema where smolagents asks for one.
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
    runtime = Runtime(name, choice, Library(), Silent())
    given = {} if temperature is None else {"temperature": temperature}
    sampling = sampling_of(runtime.model.generation() if temperature is None else {}, given)
    template = runtime.model.template()

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
            tools, told = asked.get("tools") or [], asked["messages"]
            dialect = plugins.part("dialects", chosen(template.source if template else "")).made_by()
            if template is None:
                prompt = runtime.model.encode_chat(told)
            else:
                text = dialect.render(template.render, told, tools) if tools else template.render(told)
                prompt = runtime.encode(text, raw=False)
            inside = opens_thought(runtime, prompt)
            form = (
                dialect.grammar(tools, runtime.tokenizer.token_to_id, must=True, inside=inside)
                if tools
                else None
            )
            if response_format and not tools:
                form = grammar.of_schema(response_format["json_schema"]["schema"], "response_format")
            answer, rounds = runtime.answer(
                prompt,
                sampling=sampling,
                seed=seed,
                max_tokens=max_tokens,
                stop=stop_sequences or (),
                grammar=form,
                special=bool(tools),
            )
            turn = Turn()
            with closing(rounds):
                pieces = (last.text for last in rounds)
                if tools:
                    for _ in reading(pieces, dialect, turn, inside):
                        pass
                else:
                    turn.said = "".join(pieces)
            calls = [
                ChatMessageToolCall(
                    ChatMessageToolCallFunction(call.name, call.arguments), f"call{at}", "function"
                )
                for at, call in enumerate(turn.calls)
            ]
            usage = TokenUsage(answer.prompt_tokens, len(answer.token_ids))
            return ChatMessage(MessageRole.ASSISTANT, turn.said, calls or None, raw=answer, token_usage=usage)

    return LocalspecModel()
