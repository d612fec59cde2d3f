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
from llguidance import LLMatcher

from localspec.agent.tools.mcp import servers as mcp_servers
from localspec.agent.tools.text_files import MAX_OUTPUT
from localspec.errors import BadValue
from localspec.tool_formats.qwen import Qwen
from localspec.tools import Tool, ToolFailed

RAW = Path(__file__).with_name("mcp_raw_server.py")
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


def raw(tools: list[Any], result: Any = None, **options: Any) -> Any:
    """Return the context of a server that sends just this."""
    arguments = [str(RAW), json.dumps(tools), json.dumps(result or {"content": []})]
    return mcp_servers.connected({"raw": {"command": sys.executable, "args": arguments}}, **options)


def test_odd_tools_do_not_keep_the_others_from_being_used() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    empty = {"type": "object", "properties": {}}
    odd: list[tuple[Any, str | None, Any]] = [
        ({"name": "plain", "inputSchema": schema}, "raw_plain", schema),
        ({"name": "none"}, "raw_none", empty),
        ({"name": "null", "inputSchema": None}, "raw_null", empty),
        ({"name": "untyped", "inputSchema": {"properties": schema["properties"]}}, "raw_untyped", schema),
        ({"name": "text", "inputSchema": {"type": "string"}}, "raw_text", empty),
        ({"name": "plain", "inputSchema": schema, "annotations": 5}, "raw_plain_2", schema),
        ({"name": "a/b c", "description": {"de": 7}}, "raw_a_b_c", empty),
        ({"name": ""}, "raw_", empty),
        ({"name": "taken"}, "raw_taken_3", empty),
        ({"name": 5, "inputSchema": schema}, None, None),
        ({"inputSchema": schema}, None, None),
        ("a text", None, None),
        ({"name": "own", "inputSchema": {"x-alternatives": 5}}, "raw_own", empty),
        ({"name": "no_grammar", "inputSchema": {"properties": []}}, "raw_no_grammar", empty),
    ]
    said: list[str] = []
    taken = ("raw_taken", "raw_taken_2")
    with raw([listed for listed, _, _ in odd], taken=taken, say=said.append) as found:
        assert [(tool.name, tool.parameters) for tool in found] == [
            (name, parameters) for _, name, parameters in odd if name
        ]
        source = Qwen().grammar([tool.schema_now for tool in found], lambda text: None, must=True)
        assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(source)) == ""
    assert len(said) == 3
    assert "The server `raw` has a tool without a name" in said[0]


LINK = {
    "type": "resource_link",
    "uri": "file:///a/b.txt",
    "name": "b",
    "mimeType": "text/plain",
    "description": "Of b.",
}
BLOB = {"uri": "file:///x", "blob": "AAAA", "mimeType": "application/pdf"}
RESULTS = [
    ({"content": [{"type": "resource_link", "uri": "file:///x.", "name": "x"}]}, "x: file:///x."),
    ({"content": [], "structuredContent": {"a": 1}}, '{"a": 1}'),
    ({"structuredContent": {"a": [1, "\xe9"]}}, '{"a": [1, "\xe9"]}'),
    ({"content": [{"type": "text", "text": '{"a":1}'}], "structuredContent": {"a": 1}}, '{"a":1}'),
    ({"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 3}}, "3"),
    ({"content": [{"type": "text", "text": "x"}], "structuredContent": {"result": "x"}}, "x"),
    (
        {
            "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "2"}],
            "structuredContent": {"result": ["x", 2]},
        },
        "x\n2",
    ),
    ({"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 4}}, '3\n{"result": 4}'),
    ({"content": [], "structuredContent": [1, 2]}, '{"result": [1, 2]}'),
    ({"content": [LINK]}, "b: file:///a/b.txt (text/plain). Of b."),
    ({"content": [{"type": "resource", "resource": {"uri": "file:///x", "text": "T"}}]}, "T"),
    (
        {"content": [{"type": "resource", "resource": BLOB}]},
        "(resource: file:///x, application/pdf, 3 bytes that are not text)",
    ),
    (
        {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]},
        "(image: image/png, 3 bytes that are not text)",
    ),
    (
        {"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]},
        "(audio: audio/wav, 3 bytes that are not text)",
    ),
    ({"content": [{"type": "video", "url": "x"}]}, '{"type": "video", "url": "x"}'),
    ({"content": [{"type": "text", "text": 5}]}, '{"type": "text", "text": 5}'),
    ({"content": "x"}, "x"),
    ({"content": None}, "(it returned nothing)"),
]


@pytest.mark.parametrize(("result", "text"), RESULTS)
def test_everything_that_a_result_has_arrives_or_is_named(result: Any, text: str) -> None:
    with raw([{"name": "call"}], result) as (call,):
        assert call.run() == text


def test_an_error_may_be_in_the_structured_content() -> None:
    result = {"content": [], "isError": True, "structuredContent": {"code": 5}}
    with raw([{"name": "call"}], result) as (call,), pytest.raises(ToolFailed, match='"code": 5'):
        call.run()
