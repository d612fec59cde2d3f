"""OpenAI's Responses API, asked by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from command import MODEL
from openai import BadRequestError, NotFoundError, OpenAI
from serving import ASKED, said

from localspec.serve.generation import Begin, Text
from localspec.serve.responses.requests import CreateResponse
from localspec.serve.responses.writer import ResponseWriter

QUESTION = "What is the capital of France?"
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": 40}
WEATHER: list[Any] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]


def text_of(client: OpenAI, **options: Any) -> str:
    return str(client.responses.create(**{"input": QUESTION} | GREEDY | options).output_text)


def test_an_answer_is_that_of_a_chat_completion(client: OpenAI) -> None:
    found = client.responses.create(input=QUESTION, **GREEDY)
    assert found.output_text == said(client)
    assert (found.object, found.status, found.store) == ("response", "completed", False)
    whole = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0, max_tokens=40)
    assert found.usage is not None
    assert whole.usage is not None
    assert found.usage.input_tokens == whole.usage.prompt_tokens
    assert found.usage.output_tokens == whole.usage.completion_tokens
    assert found.usage.output_tokens_details.reasoning_tokens == 0
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens


def test_a_conversation_of_items_is_read(client: OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    assert text_of(client, input=items) == text_of(client)
    french = said(client, messages=[{"role": "system", "content": "You answer in French."}, *ASKED])
    assert text_of(client, instructions="You answer in French.") == french
    first = client.responses.create(input=items, **GREEDY)
    more = [*items, *first.output, {"role": "user", "content": "And of Italy?"}]
    back = {"role": "assistant", "content": first.output_text}
    messages = [*ASKED, back, {"role": "user", "content": "And of Italy?"}]
    assert text_of(client, input=more) == said(client, messages=messages)


def test_a_stream_has_the_events_in_order(client: OpenAI) -> None:
    events = list(client.responses.create(input=QUESTION, stream=True, **GREEDY))
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas
    assert kinds == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
        *["response.output_text.delta"] * deltas,
        *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    with client.responses.stream(input=QUESTION, **GREEDY) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == text_of(client)
    assert final.usage is not None


def test_the_limit_leaves_a_response_incomplete(client: OpenAI) -> None:
    short = client.responses.create(input=QUESTION, **GREEDY | {"max_output_tokens": 3})
    assert short.status == "incomplete"
    assert short.incomplete_details is not None
    assert short.incomplete_details.reason == "max_output_tokens"
    events = client.responses.create(input=QUESTION, stream=True, **GREEDY | {"max_output_tokens": 3})
    assert [event.type for event in events][-1] == "response.incomplete"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_tool_is_called_and_its_result_answered(client: OpenAI, choice: Any) -> None:
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    options = GREEDY | {"max_output_tokens": 80, "tools": WEATHER, "tool_choice": choice}
    found = client.responses.create(input=asked, **options)
    (call,) = (item for item in found.output if item.type == "function_call")
    assert call.name == "get_weather"
    assert isinstance(json.loads(call.arguments)["city"], str)
    with client.responses.stream(input=asked, **options) as stream:
        final = stream.get_final_response()
    (streamed,) = (item for item in final.output if item.type == "function_call")
    assert streamed.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Snow, -3 degrees"}
    assert text_of(client, input=[*asked, *found.output, result])


def test_a_schema_constrains_the_answer(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "city", "schema": schema, "strict": True}
    found = client.responses.create(input=QUESTION, text={"format": form}, **GREEDY)
    assert json.loads(found.output_text)["city"] in ("Paris", "Rome")
    assert found.text is not None
    assert found.text.format is not None
    assert found.text.format.type == "json_schema"
    options = {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 400}
    assert isinstance(json.loads(text_of(client, **options)), dict)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id.*No response is kept"),
        ({"store": True}, "store.*No response is kept"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search", "search_context_size": "low"}]}, "tools.0.*`web_search`"),
        ({"tool_choice": "required"}, "tools"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": WEATHER, "tool_choice": {"type": "function", "name": "look"}}, "`look`"),
        ({"tools": WEATHER, "text": {"format": {"type": "json_object"}}}, "exclude each other"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nonsense"}}}},
            "format",
        ),
        ({"text": {"verbosity": "low"}}, "verbosity"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0.*type is not supported"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]}, "content"),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "[1]"}]},
            "JSON object",
        ),
        ({"input": []}, "input"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"truncation": "auto"}, "truncation"),
        ({"input": "word " * 9000}, "context"),
    ],
)
def test_what_is_not_supported_is_named(client: OpenAI, options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequestError, match=named):
        text_of(client, **options)


def test_null_is_as_good_as_nothing(client: OpenAI) -> None:
    options = {
        "store": False,
        "previous_response_id": None,
        "tools": [],
        "metadata": {"a": "b"},
        "include": [],
    }
    assert text_of(client, **options) == text_of(client)
    with pytest.raises(NotFoundError, match="library"):
        text_of(client, model="no-such-model")


def test_reasoning_is_an_item_of_its_own() -> None:
    writer = ResponseWriter(CreateResponse(model="m", input="Hi").told())
    events = [event for each in (Begin(), Text("Hm", True), Text(".", True)) for event in writer.add(each)]
    events += writer.add(Text("Yes"))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done", "content_part.done"),
        *("output_item.done", "output_item.added", "content_part.added", "output_text.delta"),
    ]
    reasoning, message = writer.complete()["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["status"] == "in_progress"
    body = CreateResponse(model="m", input=[reasoning, message, {"role": "user", "content": "So?"}])
    assert body.request().messages == [
        {"role": "assistant", "reasoning_content": "Hm.", "content": "Yes"},
        {"role": "user", "content": "So?"},
    ]


def test_calls_and_reasoning_belong_to_one_turn() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'}
    result = {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "2"}]}
    thought = {
        "type": "reasoning",
        "id": "r",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm"}],
    }
    items = [{"role": "user", "content": "Go"}, thought, call, call | {"call_id": "2"}, result, thought, call]
    messages = CreateResponse.model_validate({"model": "m", "input": items}).request().messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert [len(message.get("tool_calls", ())) for message in messages] == [0, 2, 0, 1]
    assert [message.get("reasoning_content") for message in messages] == [None, "Hm", None, "Hm"]
    assert messages[2]["content"] == "2"


def test_what_codex_sends_changes_nothing(client: OpenAI) -> None:
    more = {"reasoning": {"summary": "auto"}, "extra_body": {"client_metadata": {"turn_id": "1"}}}
    assert text_of(client, **more, include=["reasoning.encrypted_content"]) == text_of(client)
    with pytest.raises(BadRequestError, match="effort"):
        text_of(client, reasoning={"effort": "high"})
