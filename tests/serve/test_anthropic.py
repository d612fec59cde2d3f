"""Anthropic's API, asked by Anthropic's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic, BadRequestError, NotFoundError
from command import MODEL
from serving import Server

ASKED: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 40, "extra_body": {"temperature": 0}}
WEATHER: list[Any] = [
    {
        "name": "get_weather",
        "description": "The weather in a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as found:
        yield found


def said(client: Anthropic, **options: Any) -> str:
    options = {"messages": ASKED} | GREEDY | options
    return "".join(block.text for block in client.messages.create(**options).content if block.type == "text")


def test_an_answer_is_that_of_chat(client: Anthropic, server: Server) -> None:
    found = client.messages.create(messages=ASKED, **GREEDY)
    told = server.localspec.chat(
        "What is the capital of France?", "--json", "--temperature", "0", "--max-tokens", "40"
    ).values
    assert said(client) == told["text"]
    assert found.stop_reason == {"stop": "end_turn", "length": "max_tokens"}[told["finish_reason"]]
    usage = found.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == told["prompt_tokens"]
    assert usage.output_tokens == told["tokens"]


def test_a_stream_has_the_same_text(client: Anthropic) -> None:
    with client.messages.stream(messages=ASKED, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == said(client)
    assert final.stop_reason in ("end_turn", "max_tokens")
    assert final.usage.output_tokens > 3


def test_a_system_prompt_and_blocks_are_read(client: Anthropic) -> None:
    blocks: list[Any] = [
        {"type": "text", "text": "What is the capital of France?", "cache_control": {"type": "ephemeral"}}
    ]
    assert said(client, messages=[{"role": "user", "content": blocks}]) == said(client)
    system = [{"type": "text", "text": "You answer in French."}]
    told = client.messages.count_tokens(model=MODEL, messages=ASKED, system="You answer in French.")
    assert said(client, system=system) == said(client, system="You answer in French.")
    assert told.input_tokens != client.messages.count_tokens(model=MODEL, messages=ASKED).input_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_is_called_and_its_result_answered(client: Anthropic, choice: Any) -> None:
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    options: dict[str, Any] = GREEDY | {"max_tokens": 80, "tools": WEATHER, "tool_choice": choice}
    found = client.messages.create(messages=asked, **options)
    assert found.stop_reason == "tool_use"
    (call,) = (block for block in found.content if block.type == "tool_use")
    assert call.name == "get_weather"
    assert isinstance(call.input, dict)
    with client.messages.stream(messages=asked, **options) as stream:
        (streamed,) = (block for block in stream.get_final_message().content if block.type == "tool_use")
    assert streamed.input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Snow, -3 degrees"}
    back = [
        *asked,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in found.content]},
        {"role": "user", "content": [result]},
    ]
    assert said(client, messages=back)


def test_stop_sequences_end_an_answer(client: Anthropic) -> None:
    assert said(client, stop_sequences=["Paris"]) == said(client).partition("Paris")[0]


@pytest.mark.parametrize(
    ("field", "value"), [("thinking", {"type": "enabled", "budget_tokens": 1024}), ("service_tier", "auto")]
)
def test_a_field_that_is_not_supported_is_named(client: Anthropic, field: str, value: Any) -> None:
    with pytest.raises(BadRequestError, match=field):
        said(client, **{field: value})


def test_what_cannot_be_answered_is_refused(client: Anthropic) -> None:
    with pytest.raises(NotFoundError, match=MODEL):
        said(client, model="smollm2-13m")
    with pytest.raises(BadRequestError, match="tool_choice"):
        said(client, tool_choice={"type": "any"})
    with pytest.raises(BadRequestError, match="context"):
        said(client, messages=[{"role": "user", "content": "word " * 9000}])


def test_a_system_message_within_a_conversation_is_read(client: Anthropic) -> None:
    system: Any = {"role": "system", "content": "You answer in French."}
    assert said(client, messages=[system, *ASKED]) == said(client, system="You answer in French.")
