"""Several clients at once: each gets the answer that it would get alone, and none waits for another."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event
from typing import Any

import pytest
from command import MODEL, SECONDS, Localspec
from openai import APIStatusError, OpenAI
from serving import GREEDY, Server, said

QUESTIONS = [
    "What is the capital of France?",
    "Count from one to twenty.",
    "Say the word blue ten times.",
    "Write a Python function that adds two numbers.",
]
LONG = "The quick brown fox jumps over the lazy dog. " * 300  # about 3,000 tokens


def messages(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def streamed(client: OpenAI, text: str, **options: Any) -> Any:
    return client.chat.completions.create(messages=messages(text), stream=True, **(GREEDY | options))


def test_each_of_several_gets_the_answer_that_it_gets_alone(client: OpenAI) -> None:
    alone = [said(client, messages=messages(text)) for text in QUESTIONS]
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda text: said(client, messages=messages(text)), QUESTIONS * 3))
    assert found == alone * 3


def test_sampled_answers_are_those_of_their_seeds(client: OpenAI) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 5}
    alone = [said(client, messages=messages(text), **options) for text in QUESTIONS]
    with ThreadPoolExecutor(4) as pool:
        asked = pool.map(lambda text: said(client, messages=messages(text), **options), QUESTIONS)
        assert list(asked) == alone


def test_a_long_prompt_lets_others_write_meanwhile(client: OpenAI) -> None:
    """The answer that is being written goes on while the prompt of another is read."""
    with ThreadPoolExecutor(1) as pool:
        stream = streamed(client, "Count from one to fifty.", max_tokens=200)
        next(stream)
        long = pool.submit(lambda: list(streamed(client, LONG, max_tokens=1)))
        pieces = 0
        for _ in stream:
            pieces += not long.done()
        long.result(timeout=SECONDS)
    assert pieces > 3


def test_a_client_that_leaves_while_its_prompt_is_read_frees_its_place(localspec: Localspec) -> None:
    server = Server(localspec, MODEL, "--parallel", "1")
    try:
        body = json.dumps({"model": MODEL, "messages": messages(LONG * 2), "stream": True})
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)) as leaving:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
            leaving.sendall(f"{head}content-type: application/json\r\n\r\n{body}".encode())
            assert leaving.recv(100).startswith(b"HTTP/1.1 200")
        with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            found = client.chat.completions.create(
                messages=messages(LONG * 2), **(GREEDY | {"max_tokens": 1})
            )
        assert found.usage is not None
        details = found.usage.prompt_tokens_details
        assert details is not None
        assert details.cached_tokens is not None
        assert details.cached_tokens < found.usage.prompt_tokens - 500
    finally:
        assert server.stop() == 143


@pytest.fixture
def ending(localspec: Localspec) -> Iterator[tuple[Server, OpenAI]]:
    server = Server(localspec, MODEL, "--parallel", "1", "--queue", "1")
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield server, client
    assert server.stop() == 143


def test_the_end_of_a_server_ends_its_streams_and_refuses_what_waits(ending: tuple[Server, OpenAI]) -> None:
    server, client = ending
    writes = Event()

    def write() -> Any:
        for _ in streamed(client, "Count from one to a thousand.", max_tokens=4000):
            writes.set()

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write)
        assert writes.wait(SECONDS)
        waiting = pool.submit(said, client, max_tokens=8)
        while json.loads(server.ask("GET", "/api/ps")[1])["models"][0]["localspec"]["requests"] < 2:
            pass
        with pytest.raises(APIStatusError) as full:
            said(client)
        assert full.value.status_code == 503
        server.signal(signal.SIGTERM)
        with pytest.raises(Exception, match="The server ends"):
            writing.result(timeout=SECONDS)
        with pytest.raises(APIStatusError) as ended:
            waiting.result(timeout=SECONDS)
        assert ended.value.status_code == 503
