"""Ollama's API, asked by Ollama's own client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from command import MODEL
from ollama import Client, ResponseError
from serving import Server

ASKED = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 40}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as found:
        yield found


def said(client: Client, **options: Any) -> str:
    asked: dict[str, Any] = {"model": MODEL, "messages": ASKED, "options": GREEDY} | options
    return str(client.chat(**asked).message.content)


def test_an_answer_is_that_of_chat(client: Client, server: Server) -> None:
    found = client.chat(MODEL, ASKED, options=GREEDY)
    told = server.localspec.chat(
        "What is the capital of France?", "--json", "--temperature", "0", "--max-tokens", "40"
    ).values
    assert found.message.content == told["text"]
    assert (found.done, found.done_reason) == (True, told["finish_reason"])
    assert (found.prompt_eval_count, found.eval_count) == (told["prompt_tokens"], told["tokens"])
    parts = list(client.chat(MODEL, ASKED, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == told["text"]
    assert [part.done for part in parts][-1]


def test_a_prompt_is_answered_or_continued(client: Client) -> None:
    whole = client.generate(MODEL, "What is the capital of France?", options=GREEDY)
    assert whole.response == said(client)
    raw = client.generate(MODEL, "1, 2, 3, 4, 5,", raw=True, options=GREEDY | {"num_predict": 12})
    assert str(raw.response).startswith(" 6, 7")
    system = client.generate(MODEL, "Hi", system="You answer in French.", options=GREEDY)
    messages = [{"role": "system", "content": "You answer in French."}, {"role": "user", "content": "Hi"}]
    assert system.response == said(client, messages=messages)


def test_a_format_constrains_the_answer(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert json.loads(said(client, format=schema))["city"] in ("Paris", "Rome")


def test_a_conversation_with_calls_is_read(client: Client) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    messages = [
        {"role": "user", "content": "What is the weather in Oslo?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Snow, -3 degrees", "tool_name": "get_weather"},
    ]
    tool = {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {}},
    }
    assert said(client, messages=messages, tools=[{"type": "function", "function": tool}]) is not None


def test_the_models_are_told(client: Client) -> None:
    assert [model.model for model in client.list().models] == [MODEL]
    assert [model.model for model in client.ps().models] == [MODEL]
    assert "completion" in (client.show(MODEL).capabilities or [])


def test_what_cannot_be_answered_is_refused(client: Client) -> None:
    with pytest.raises(ResponseError, match="library") as unknown:
        said(client, model="no-such-model")
    assert unknown.value.status_code == 404
    for options, named in (
        ({"options": {"mirostat": 2}}, "mirostat"),
        ({"options": {"num_ctx": 10**7}}, "num_ctx"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": "1.2.3m"}, "keep_alive"),
        ({"think": True}, "think"),
    ):
        with pytest.raises(ResponseError, match=named) as refused:
            said(client, **options)
        assert refused.value.status_code == 400


def test_no_prompt_loads_and_unloads(client: Client) -> None:
    assert client.generate(MODEL).done_reason == "load"
    (found,) = client.ps().models
    assert found.expires_at is not None
    assert found.context_length == 8192
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
    assert client.ps().models == []
    assert client.generate(MODEL, keep_alive=-1).done_reason == "load"
    assert client.ps().models[0].expires_at is None
    assert client.generate(MODEL, keep_alive="10m").done_reason == "load"


def test_a_model_leaves_when_it_was_told_to(client: Client) -> None:
    assert said(client, keep_alive=-1)
    assert [model.model for model in client.ps().models] == [MODEL]
    assert said(client, keep_alive=0)
    end = time.monotonic() + 120
    while client.ps().models:
        assert time.monotonic() < end
        time.sleep(0.5)
    assert said(client)  # it comes back
