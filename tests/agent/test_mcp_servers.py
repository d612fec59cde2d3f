"""MCP servers: real ones, over stdio and HTTP, that answer, fail, die and never answer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from localspec.agent.tools import mcp_servers
from localspec.agent.tools.files import MAX_OUTPUT
from localspec.errors import BadValue
from localspec.tools import Tool, ToolFailed

SERVER = Path(__file__).with_name("mcp_server.py")
SMALL: dict[str, Any] = {"command": sys.executable, "args": [str(SERVER)], "env": {"MINE": "given"}}


def by_name(tools: list[Tool]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


def start(given: dict[str, dict[str, Any]]) -> None:
    with mcp_servers.connected(given):
        pass


@pytest.fixture(scope="module")
def small() -> Iterator[dict[str, Tool]]:
    with mcp_servers.connected({"small": SMALL}) as tools:
        yield by_name(tools)


def test_tools_of_a_server_are_tools(small: dict[str, Tool]) -> None:
    found = small["small_add"]
    assert found.description == "Add two numbers."
    assert found.access == "run"
    assert found.parameters["properties"]["a"]["type"] == "integer"
    assert found.parameters["required"] == ["a"]
    assert found.run(a=2, b=3) == "5"
    assert found.run(a=2) == "3"
    assert "small_pid_of_me" in small


def test_a_server_has_its_own_environment(small: dict[str, Tool]) -> None:
    assert small["small_environment"].run(name="MINE") == "given"
    assert small["small_environment"].run(name="LOCALSPEC_HOME") == "not set"


def test_errors_of_a_server_are_reported(small: dict[str, Tool]) -> None:
    with pytest.raises(ToolFailed, match="for a reason"):
        small["small_fail"].run(why="for a reason")
    with pytest.raises(ToolFailed):
        small["small_add"].run(a="many")
    with pytest.raises(ToolFailed, match="needs `a`"):
        small["small_add"].check({})


def test_results_of_a_server_are_shortened(small: dict[str, Tool]) -> None:
    assert len(small["small_much"].run()) < MAX_OUTPUT + 100
    assert small["small_nothing"].run() == "(it returned nothing)"


def test_a_server_ends_with_the_block_and_its_stderr_is_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    with mcp_servers.connected({"one": SMALL, "two": SMALL}) as tools:
        found = by_name(tools)
        pids = [int(found[f"{name}_pid_of_me"].run()) for name in ("one", "two")]
        assert all(psutil.pid_exists(pid) for pid in pids)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert capfd.readouterr() == ("", "")


def test_a_server_that_dies_in_a_call_leaves_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    with mcp_servers.connected({"one": SMALL, "two": SMALL}) as tools:
        found = by_name(tools)
        with pytest.raises(ToolFailed, match="`die` failed"):
            found["one_die"].run()
        with pytest.raises(ToolFailed):
            found["one_add"].run(a=1)
        assert found["two_add"].run(a=1) == "2"
    assert capfd.readouterr() == ("", "")


def test_an_unanswered_call_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with mcp_servers.connected({"small": SMALL}) as tools:
        found = by_name(tools)
        pid = int(found["small_pid_of_me"].run())
        monkeypatch.setattr(mcp_servers, "CALL_TIMEOUT", 0.5)
        with pytest.raises(ToolFailed, match=r"did not answer in 0\.5 seconds"):
            found["small_hang"].run()
    assert not psutil.pid_exists(pid)


def test_a_server_that_never_starts_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_servers, "START_TIMEOUT", 0.5)
    before = set(psutil.Process().children(recursive=True))
    silent = {"command": sys.executable, "args": ["-c", "import time; time.sleep(600)"]}
    with pytest.raises(mcp_servers.ServerFailed, match=r"`silent` did not answer in 0\.5 seconds") as error:
        start({"silent": silent})
    assert error.value.hint
    assert set(psutil.Process().children(recursive=True)) == before


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("import nothing_of_that_name", "No module named"),
        ("print('hello, I am no server')", "by hand"),
        ("import sys; sys.stderr.write('\\x1b[2Jno key'); sys.exit(1)", "\ufffd[2Jno key"),
    ],
)
def test_a_server_that_does_not_start(code: str, hint: str, capfd: pytest.CaptureFixture[str]) -> None:
    given = {"bad": {"command": sys.executable, "args": ["-c", code]}}
    with pytest.raises(mcp_servers.ServerFailed, match="The server `bad` did not start") as error:
        start(given)
    assert error.value.hint is not None
    assert hint in error.value.hint
    assert capfd.readouterr() == ("", "")


def test_a_server_whose_program_is_missing() -> None:
    with pytest.raises(
        mcp_servers.ServerFailed, match="`no-such-program`, which runs the server `bad`, is not installed"
    ) as error:
        start({"bad": {"command": "no-such-program"}})
    assert error.value.hint


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: int = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(found)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", found)) == 0:
                break
        time.sleep(0.1)
    yield found
    process.kill()
    process.wait()


def test_a_server_over_http(port: int) -> None:
    given = {"far": {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"X-Key": "1"}}}
    with mcp_servers.connected(given) as tools:
        found = by_name(tools)
        assert found["far_add"].run(a=2) == "3"
        with pytest.raises(ToolFailed):
            found["far_die"].run()
        with pytest.raises(ToolFailed):
            found["far_add"].run(a=2)


def test_an_http_server_that_is_down() -> None:
    with pytest.raises(mcp_servers.ServerFailed, match="`far` did not start") as error:
        start({"far": {"url": "http://127.0.0.1:1/mcp"}})
    assert error.value.hint == "Check its `url`"


def test_the_file_of_other_clients_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": SMALL, "b": {**SMALL, "disabled": True}}}))
    assert mcp_servers.read_servers(path) == {"a": SMALL}
    path.write_text(json.dumps({"servers": {"a": {"url": "http://localhost/mcp"}}}), "utf-8-sig")
    assert list(mcp_servers.read_servers(path)) == ["a"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "is not UTF-8"),
        ("[]", "has no servers"),
        ("{}", "has no servers"),
        ('{"mcpServers": []}', "has no servers"),
        ('{"mcpServers": {"a": {}}}', "neither a `command` nor a `url`"),
        ('{"mcpServers": {"a": "uvx"}}', "neither a `command` nor a `url`"),
        ('{"mcpServers": {"a": {"command": 1}}}', "neither a `command` nor a `url`"),
        ('{"mcpServers": {"a": {"command": "b", "args": "-x"}}}', "`args` of `a`"),
        ('{"mcpServers": {"a": {"command": "b", "args": [1]}}}', "`args` of `a`"),
        ('{"mcpServers": {"a": {"command": "b", "env": {"A": 1}}}}', "`env` of `a`"),
        ('{"mcpServers": {"a": {"url": "b", "headers": ["x"]}}}', "`headers` of `a`"),
    ],
)
def test_a_wrong_servers_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadValue) as error:
        mcp_servers.read_servers(path)
    assert said in str(error.value)
    assert error.value.hint


def test_a_missing_servers_file_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="No such file"):
        mcp_servers.read_servers(tmp_path / "none.json")
    with pytest.raises(BadValue, match="cannot be read"):
        mcp_servers.read_servers(tmp_path)


def test_an_unsupported_schema_goes_into_the_description() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}}}
    schema, told = mcp_servers._schema_and_description(
        SimpleNamespace(name="odd", description="Odd.", input_schema=odd)
    )
    assert schema == {"type": "object", "properties": {}}
    assert told == f"Odd. Its arguments: {json.dumps({'properties': {}, **odd})}"
    schema, told = mcp_servers._schema_and_description(
        SimpleNamespace(name="bare", description=None, input_schema={})
    )
    assert (schema, told) == ({"type": "object", "properties": {}}, "bare")
    tool = Tool("odd", told, schema, print)
    tool.check({"a": "y"})
