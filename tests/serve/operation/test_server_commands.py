"""`localspec ps`, `stop` and `launch`, which ask a server that runs."""

from __future__ import annotations

import json
import shlex
import socket
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from command import MODEL, Localspec
from serving import Server
from stand_in import StandIn


@pytest.fixture
def port(server: Server) -> tuple[str, str]:
    return "--port", str(server.port)


@pytest.fixture
def nobody() -> tuple[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return "--port", str(closed.getsockname()[1])


def test_a_model_is_listed_and_unloaded(localspec: Localspec, server: Server, port: tuple[str, str]) -> None:
    server.load(MODEL)
    lines = localspec.run("ps", *port).out.splitlines()
    assert lines[0].split() == ["model", "size", "engine", "draft", "requests", "leaves"]
    assert lines[1].startswith(MODEL)
    (found,) = json.loads(localspec.run("ps", "--json", *port).out)
    assert (found["name"], found["localspec"]["requests"]) == (MODEL, 0)
    localspec.run("stop", "smollm", *port).refused(1, "not loaded", f"`{MODEL}`")
    assert localspec.run("stop", MODEL, *port).code == 0
    assert json.loads(localspec.run("ps", "--json", *port).out) == []
    localspec.run("stop", MODEL, *port).refused(1, "not loaded", "localspec ps")
    server.load(MODEL)


@pytest.mark.parametrize("command", [("ps",), ("stop", MODEL), ("launch", "aider")])
def test_no_server_is_told(localspec: Localspec, nobody: tuple[str, str], command: tuple[str, ...]) -> None:
    localspec.run(*command, *nobody).refused(1, "No server answers", "localspec serve")


class Other(BaseHTTPRequestHandler):
    """Another program than localspec."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<h1>Hello</h1>")

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def other() -> Iterator[tuple[str, str]]:
    with HTTPServer(("127.0.0.1", 0), Other) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield "--port", str(found.server_port)
        found.shutdown()
        thread.join()


def test_another_program_is_told(localspec: Localspec, other: tuple[str, str]) -> None:
    localspec.run("ps", *other).refused(1, "another program", "--port")


def test_a_key_is_sent(localspec: Localspec) -> None:
    running = Server(localspec, "--api-key", "secret")
    port = ("--port", str(running.port))
    localspec.run("ps", *port).refused(1, "API key", "--api-key")
    assert localspec.run("ps", "--api-key", "secret", *port).code == 0
    assert running.stop() == 143


def launched(localspec: Localspec, tool: str, port: tuple[str, str]) -> str:
    ran = localspec.run("launch", tool, MODEL, *port)
    assert ran.code == 0, ran.err
    return ran.out


def test_each_tool_gets_the_address_the_key_and_the_model(
    localspec: Localspec, server: Server, port: tuple[str, str]
) -> None:
    aider = launched(localspec, "aider", port).splitlines()
    assert aider[0] == f"export OPENAI_API_BASE={server.url}/v1"
    assert aider[-1] == f"aider --model openai/{MODEL}"
    assert f"export ANTHROPIC_BASE_URL={server.url}\n" in launched(localspec, "claude", port)
    words = shlex.split(launched(localspec, "codex", port).splitlines()[-1])
    values = [tomllib.loads(word) for flag, word in zip(words, words[1:], strict=False) if flag == "-c"]
    assert values[1]["model_providers"]["localspec"]["base_url"] == f"{server.url}/v1"
    opencode = json.loads(launched(localspec, "opencode", port))
    assert opencode["provider"]["localspec"]["options"]["baseURL"] == f"{server.url}/v1"
    assert opencode["model"] == f"localspec/{MODEL}"
    assert f'apiBase: "{server.url}/v1"' in launched(localspec, "continue", port)
    zed = json.loads(launched(localspec, "zed", port))["language_models"]["openai_compatible"]["Local"]
    assert (zed["api_url"], zed["available_models"][0]["max_tokens"]) == (f"{server.url}/v1", 8192)


def test_without_a_server_a_named_model_is_set_up(localspec: Localspec, nobody: tuple[str, str]) -> None:
    ran = localspec.run("launch", "aider", MODEL, *nobody)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, f"aider --model openai/{MODEL}")
    assert "localspec serve" in ran.err


@pytest.mark.parametrize("tool", ["aider", "claude", "codex", "opencode"])
def test_a_tool_runs_with_its_environment(
    localspec: Localspec, server: Server, port: tuple[str, str], tmp_path: Path, tool: str
) -> None:
    server.load(MODEL)
    program = StandIn(tmp_path, tool, code=3)
    ran = localspec.run("launch", tool, "--run", *port, PATH=program.path)
    assert ran.code == 3, ran.err
    started = program.started
    assert server.url in json.dumps(started)
    assert MODEL in json.dumps(started)


def test_what_cannot_be_launched_is_refused(
    localspec: Localspec, port: tuple[str, str], tmp_path: Path
) -> None:
    localspec.run("launch", "aide", *port).refused(2, "`aide`", "`aider`")
    localspec.run("launch", "aider", "smollm", *port).refused(1, "`smollm`", f"`{MODEL}`")
    localspec.run("launch", "zed", MODEL, "--run", *port).refused(2, "`zed`", "settings.json")
    localspec.run("launch", "aider", MODEL, "--run", *port, PATH=str(tmp_path)).refused(127, "not installed")
