"""A server on a user's machine answers nobody it should not."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from typing import Any

import pytest
from command import MODEL, Localspec
from serving import Server

BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})


def post(
    server: Server, body: Any = BODY, path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, Any]:
    """Return the status and the body of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request("POST", path, body, {"content-type": "application/json"} | named)
        response = connection.getresponse()
        text = response.read().decode()
    return response.status, json.loads(text) if text else None


def test_a_page_of_another_site_is_refused(server: Server) -> None:
    assert post(server, host="evil.example")[0] == 403  # a name that was rebound to this machine
    assert post(server, origin="https://evil.example")[0] == 403
    assert post(server, origin="null")[0] == 403
    assert post(server, origin=f"http://localhost:{server.port}")[0] == 200
    assert post(server, host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize("body", ["{", "[]", "null", '{"model": 3}', b"\xff\xfe{}", "{" * 100_000])
def test_a_malformed_body_is_one_error(server: Server, body: Any) -> None:
    status, told = post(server, body)
    assert status == 400
    assert told["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"prediction": {"type": "content", "content": "\ud800"}}),
        ("chat/completions", {"localspec": {"draft": "\ud800"}}),
        ("chat/completions", {"localspec": {"draft_length": "\ud800"}}),
        ("chat/completions", {"stop": "\ud800"}),
        ("responses", {"input": "Hi", "metadata": {"\ud800": "\ud800"}, "user": "\ud800"}),
        ("responses", {"input": "Hi", "instructions": "\ud800"}),
        ("responses", {"input": "Hi", "tools": [{"type": "\ud800"}]}),
        ("responses", {"input": "Hi", "tools": [{"type": "function", "name": "\ud800"}]}),
        ("responses", {"input": "Hi", "tool_choice": {"type": "function", "name": "\ud800"}}),
        (
            "responses",
            {"input": [{"type": "function_call", "call_id": "", "name": "\ud800", "arguments": "["}]},
        ),
        (
            "responses",
            {"input": "Hi", "text": {"format": {"type": "json_schema", "schema": {"enum": ["\ud800"]}}}},
        ),
        ("responses", {"input": "Hi", "\ud800": 1}),
        ("completions", {"prompt": "Hi", "suffix": "\ud800"}),
        ("completions", {"prompt": ["Hi", "\ud800"]}),
        ("embeddings", {"input": "\ud800"}),
    ],
)
def test_half_a_character_is_no_fault_of_the_server(server: Server, path: str, fields: Any) -> None:
    limit = {"max_output_tokens": 2} if path == "responses" else {"max_tokens": 2}
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {}
    body = {"model": MODEL, **asked, **({} if path == "embeddings" else limit), **fields}
    status, told = post(server, json.dumps(body), f"/v1/{path}")
    assert status in (200, 400)
    assert status == 200 or told["error"]["message"]


def test_a_huge_body_is_refused(server: Server) -> None:
    assert post(server, b"x" * 10_000_001)[0] == 413
    pieces = iter([b"x" * 1_000_000] * 11)
    assert post(server, pieces)[0] == 413  # one that does not say its length


def test_a_slow_client_keeps_nobody_from_an_answer(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
        assert post(server)[0] == 200


def test_a_key_is_required_where_it_is_set(localspec: Localspec) -> None:
    running = Server(localspec, "--api-key", "secret")
    assert post(running)[0] == 401
    assert post(running, authorization="Bearer wrong")[0] == 401
    assert post(running, authorization="Bearer secret")[0] == 200
    assert post(running, x_api_key="secret")[0] == 200
    assert running.stop() == 143  # as a program ends that SIGTERM ends


def test_other_machines_need_a_key(localspec: Localspec) -> None:
    localspec.run("serve", "--host", "0.0.0.0").refused(2, "0.0.0.0", "--api-key")


def test_a_time_is_read_before_anything_is_loaded(localspec: Localspec) -> None:
    localspec.run("serve", "no-such-model", "--keep-alive", "soon").refused(2, "--keep-alive", "soon", "10m")


def test_the_page_of_the_server_itself_may_ask_by_any_name(localspec: Localspec) -> None:
    running = Server(localspec, "--host", "0.0.0.0", "--api-key", "secret")
    key = {"x_api_key": "secret"}
    assert post(running, host="laptop:8000", origin="http://laptop:8000", **key)[0] == 200
    assert post(running, host="laptop:8000", origin="http://laptop:8000")[0] == 401
    assert post(running, host="laptop:8000", origin="http://evil.example", **key)[0] == 403
    assert post(running, host="laptop:8000", origin="http://laptop:9000", **key)[0] == 403
    assert running.stop() == 143


def test_a_taken_port_is_told(localspec: Localspec, server: Server) -> None:
    localspec.run("serve", "--port", str(server.port)).refused(1, str(server.port))
