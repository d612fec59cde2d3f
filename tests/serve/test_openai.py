"""OpenAI's API, asked by OpenAI's own client."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from command import MODEL
from openai import APIStatusError, BadRequestError, NotFoundError, OpenAI
from serving import ASKED, GREEDY, Server, said

WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def test_the_models_of_the_library_are_listed(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(NotFoundError):
        client.models.retrieve("no-such-model")


def test_an_answer_is_that_of_chat(client: OpenAI, server: Server) -> None:
    found = client.chat.completions.create(messages=ASKED, **GREEDY)
    told = server.localspec.chat(
        "What is the capital of France?", "--json", "--temperature", "0", "--max-tokens", "40"
    ).values
    (choice,) = found.choices
    assert choice.message.content == told["text"]
    assert choice.finish_reason == told["finish_reason"]
    assert found.usage is not None
    assert found.usage.prompt_tokens == told["prompt_tokens"]
    assert found.usage.completion_tokens == told["tokens"]
    details = found.usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens is not None


def test_a_stream_has_the_same_text_and_its_usage_if_asked(client: OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(messages=ASKED, stream=True, stream_options=options, **GREEDY)  # type: ignore[call-overload]
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == said(client)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens > 30


def test_a_text_is_continued(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": "1, 2, 3, 4, 5,", "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(**options)
    assert whole.choices[0].text.startswith(" 6, 7")
    chunks = client.completions.create(stream=True, **options)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_stop_texts_and_the_limit_end_an_answer(client: OpenAI) -> None:
    whole = said(client)
    assert said(client, stop="Paris") == whole.partition("Paris")[0]
    short = client.chat.completions.create(messages=ASKED, **GREEDY | {"max_tokens": 3})
    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None
    assert short.usage.completion_tokens == 3


def test_a_schema_constrains_the_answer(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    assert json.loads(said(client, response_format=form))["city"] in ("Paris", "Rome")
    assert isinstance(json.loads(said(client, response_format={"type": "json_object"}, max_tokens=400)), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_tool_is_called_and_its_result_answered(client: OpenAI, choice: Any) -> None:
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    first = client.chat.completions.create(
        messages=asked, tools=WEATHER, tool_choice=choice, **GREEDY | {"max_tokens": 80}
    ).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls
    call: Any = first.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    result = {"role": "tool", "tool_call_id": call.id, "content": "Snow, -3 degrees"}
    back = [*asked, first.message.model_dump(exclude_none=True), result]
    assert said(client, messages=back)


def test_a_streamed_call_is_the_same(client: OpenAI) -> None:
    options = GREEDY | {"max_tokens": 80, "tools": WEATHER, "tool_choice": "required", "messages": ASKED}
    whole = client.chat.completions.create(**options).choices[0].message.tool_calls
    chunks = client.chat.completions.create(stream=True, **options)
    parts = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [part.function.arguments for part in parts] == [call.function.arguments for call in whole]


def test_clients_at_once_get_the_answers_they_get_alone(client: OpenAI) -> None:
    questions = [f"Write one sentence about the number {number}." for number in range(6)]

    def ask(question: str) -> str:
        return said(client, messages=[{"role": "user", "content": question}])

    alone = [ask(question) for question in questions]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, questions)) == alone


def test_a_client_that_leaves_frees_the_model(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        messages=[{"role": "user", "content": "Write a very long story."}],
        stream=True,
        **GREEDY | {"max_tokens": 1500},
    )
    next(iter(stream))
    stream.close()
    assert said(client, max_tokens=3)  # else it would wait for 1,500 tokens


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("functions", []),
            ("temperature", 9),
            ("n", 9),
            ("logit_bias", {"5": 101}),
            ("logit_bias", {"x": 1}),
        ),
        *(("top_logprobs", 2), ("logprobs", 3), ("logit_bias", {"10000000": 1})),
    ],
)
def test_a_field_that_is_not_supported_is_named(client: OpenAI, field: str, value: Any) -> None:
    with pytest.raises(BadRequestError, match=field):
        client.chat.completions.create(messages=ASKED, **GREEDY | {field: value})


def test_models_that_write_text_make_no_embeddings(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match=f"`{MODEL}` makes no embeddings"):
        client.embeddings.create(model=MODEL, input="Hi")
    with pytest.raises(NotFoundError):
        client.embeddings.create(model="no-such-model", input=["Hi"])


def test_what_cannot_be_answered_is_refused(client: OpenAI) -> None:
    with pytest.raises(NotFoundError, match=MODEL):
        said(client, model="smollm2-13m")
    with pytest.raises(NotFoundError):
        said(client, model="../../etc/passwd")
    with pytest.raises(BadRequestError, match=r"8,?192|context"):
        said(client, messages=[{"role": "user", "content": "word " * 9000}])
    with pytest.raises(BadRequestError, match="tools"):
        said(client, tool_choice="required")
    with pytest.raises(BadRequestError, match="response_format"):
        said(client, response_format={"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}})
    function = {"name": "f", "arguments": "[1]"}
    call = {"id": "1", "type": "function", "function": function}
    with pytest.raises(BadRequestError, match="JSON object"):
        said(client, messages=[*ASKED, {"role": "assistant", "tool_calls": [call]}])
    with pytest.raises(APIStatusError):
        said(client, messages=[])
    assert said(client, top_p=0.5)  # beside temperature 0, where it does nothing
