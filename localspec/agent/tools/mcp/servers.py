"""Tools of MCP servers, through the `mcp` package."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from localspec import children
from localspec.agent.tools.mcp.messages import Tolerant, text_of
from localspec.agent.tools.text_files import shortened
from localspec.disk import given
from localspec.errors import BadValue, LocalspecError, MissingExtra, printable
from localspec.output import grammar
from localspec.output.visible import visible
from localspec.tools import ALTERNATIVES, SUBSTRING_OF, Tool, ToolFailed

START_TIMEOUT = 60.0  # seconds: `npx` and `uvx` download a server the first time
CALL_TIMEOUT = 120.0
STOP_TIMEOUT = 10.0
MAX_STDERR = 4000  # characters, of the end
OWN_KEYS = (ALTERNATIVES, SUBSTRING_OF)

Result = TypeVar("Result")


class ServerFailed(LocalspecError):
    """An MCP server cannot be started or does not answer."""


def read_servers(path: Path) -> dict[str, dict[str, Any]]:
    """Return the servers in a file, `{"mcpServers": {NAME: {"command" or "url": ...}}}`.

    MCP clients share this format. Raises BadValue for a file that is not like that.
    """
    try:
        values = json.loads(given.read_text(path))
    except (ValueError, RecursionError) as error:
        raise BadValue(f"`{path}` is not JSON: {error}", 'It looks like {"mcpServers": {...}}') from None
    servers = values.get("mcpServers", values.get("servers")) if isinstance(values, dict) else None
    if not isinstance(servers, dict):
        raise BadValue(f"`{path}` has no servers", 'It looks like {"mcpServers": {...}}')
    for name, server in servers.items():
        _check(server, f"`{printable(name)}` in `{path}`")
    return {name: server for name, server in servers.items() if not server.get("disabled")}


def _check(server: Any, shown: str) -> None:
    """Raise BadValue for settings that do not say how to reach a server."""
    if not isinstance(server, dict) or not isinstance(server.get("command", server.get("url")), str):
        raise BadValue(
            f"{shown} has neither a `command` nor a `url`", 'It looks like {"command": "uvx", "args": [...]}'
        )
    if not _are_texts(server.get("args", [])):
        raise BadValue(f"`args` of {shown} is not a list of texts", 'Write ["one", "two"]')
    for key in ("env", "headers"):
        values = server.get(key) or {}
        if not isinstance(values, dict) or not _are_texts(list(values.values())):
            raise BadValue(f"`{key}` of {shown} is not an object of texts", 'Write {"NAME": "value"}')


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


@contextmanager
def connected(
    servers: Mapping[str, Mapping[str, Any]],
    *,
    taken: Collection[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[list[Tool]]:
    """Start the servers, yield their tools, named SERVER_TOOL, and stop the servers after the block.

    A tool whose name is `taken` gets a number. `say` is told of tools that are left out. Raises MissingExtra
    without the `mcp` package, ServerFailed for a server that does not start. A call to a server that has died
    since raises ToolFailed.
    """
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise MissingExtra("mcp", "mcp") from None
    logging.getLogger("mcp").addHandler(logging.NullHandler())  # it would print to stderr
    loop = _Loop()
    running = [_Server(name, dict(server), loop, say) for name, server in servers.items()]
    try:
        for server in running:
            server.start()
        yield _with_own_names([tool for server in running for tool in server.tools], taken)
    finally:
        for server in running:
            server.stop()
        loop.close()


def _with_own_names(tools: Sequence[Tool], taken: Collection[str]) -> list[Tool]:
    names, found = set(taken), []
    for tool in tools:
        numbered = (f"{tool.name}_{number}" for number in count(2))
        name = tool.name if tool.name not in names else next(name for name in numbered if name not in names)
        names.add(name)
        found.append(replace(tool, name=name))
    return found


class _Loop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], seconds: float) -> Result:
        """Return the result of `work`; raises TimeoutError, and what `work` raises."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT)
        if not self._thread.is_alive():
            self._loop.close()


class _Server:
    """One server: a task holds its connection from start to stop."""

    def __init__(self, name: str, settings: dict[str, Any], loop: _Loop, say: Callable[[str], None]) -> None:
        self.name = name
        self._say = say
        self.tools: list[Tool] = []
        self._settings = settings
        self._loop = loop
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stopped: asyncio.Event | None = None
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115

    def start(self) -> None:
        """Connect and list the tools; raises ServerFailed."""
        command = self._settings.get("command")
        if command and shutil.which(command, path=self._path()) is None:
            raise ServerFailed(
                f"`{command}`, which runs the server `{self.name}`, is not installed",
                "Install it, or give its full path",
            )
        try:
            tools = self._loop.run(self._connect(), START_TIMEOUT)
        except TimeoutError:
            raise ServerFailed(
                f"The server `{self.name}` did not answer in {START_TIMEOUT:g} seconds", self._hint()
            ) from None
        except Exception as error:  # a server or its transport may raise anything
            raise ServerFailed(
                f"The server `{self.name}` did not start: {format_cause(error)}", self._hint()
            ) from None
        self.tools = [self._tool(tool) for tool in tools]

    def stop(self) -> None:
        """Close the connection, which ends the server's process."""
        if self._task is not None:
            with suppress(Exception):  # it may have died
                self._loop.run(self._leave(), 2 * STOP_TIMEOUT)
        self._stderr.close()

    def _hint(self) -> str:
        """Return the last line that the server printed, or a hint how to see more."""
        self._stderr.seek(0)
        lines = [line for line in visible(self._stderr.read()[-MAX_STDERR:]).splitlines() if line.strip()]
        if lines:
            return f"It says: {lines[-1].strip()}"
        return (
            f"Try `{self._settings['command']}` by hand" if "command" in self._settings else "Check its `url`"
        )

    def _path(self) -> str | None:
        return (self._settings.get("env") or {}).get("PATH") or os.environ.get("PATH")

    async def _connect(self) -> list[Any]:
        ready: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._stopped = asyncio.Event()
        self._task = asyncio.create_task(self._hold(ready))
        return await ready

    async def _hold(self, ready: asyncio.Future[list[Any]]) -> None:
        from mcp import Client

        try:
            async with AsyncExitStack() as stack:
                transport = Tolerant(await self._transport(stack), self._tell)
                client = await stack.enter_async_context(Client(transport, read_timeout_seconds=CALL_TIMEOUT))
                tools, cursor = [], None
                while True:
                    page = await client.list_tools(cursor=cursor)
                    tools += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
                self._client = client
                ready.set_result(tools)
                assert self._stopped is not None
                await self._stopped.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else ServerFailed(str(error)))
            if not isinstance(error, Exception):
                raise
        finally:
            self._client = None

    def _tell(self, text: str) -> None:
        self._say(f"The server `{printable(self.name)}` {visible(text)}")

    async def _transport(self, stack: AsyncExitStack) -> Any:
        """Return the transport to the server; `stack` closes what it needs."""
        if "command" not in self._settings:
            return await self._http(stack)
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        program, *arguments = children.guarded([self._settings["command"], *self._settings.get("args", [])])
        options = {key: self._settings[key] for key in ("env", "cwd") if self._settings.get(key)}
        server = StdioServerParameters(command=program, args=arguments, **options)
        return stdio_client(server, self._stderr)

    async def _http(self, stack: AsyncExitStack) -> Any:
        url, headers = self._settings["url"], self._settings.get("headers") or {}
        if self._settings.get("type") == "sse":
            from mcp.client.sse import sse_client

            return sse_client(url, headers=headers)
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=CALL_TIMEOUT))
        return streamable_http_client(url, http_client=client)

    async def _leave(self) -> None:
        assert self._stopped is not None
        assert self._task is not None
        self._stopped.set()
        if self._client is None:  # still starting
            self._task.cancel()
        await asyncio.wait([self._task], timeout=STOP_TIMEOUT)
        self._task.cancel()

    def _tool(self, listed: Any) -> Tool:
        def run(**arguments: Any) -> str:
            return self._call(listed.name, arguments)

        name = re.sub(r"[^\w-]", "_", f"{self.name}_{listed.name}")
        schema, description = _schema_and_description(listed)
        return Tool(name, description, schema, run, access="run")

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        client = self._client
        if client is None:
            raise ToolFailed(f"The server `{self.name}` has ended")
        try:
            result = self._loop.run(client.call_tool(name, arguments), CALL_TIMEOUT)
        except TimeoutError:
            raise ToolFailed(f"`{name}` did not answer in {CALL_TIMEOUT:g} seconds") from None
        except Exception as error:  # a server or its transport may raise anything
            raise ToolFailed(f"`{name}` failed: {format_cause(error)}") from None
        text = shortened(text_of(result))
        if result.is_error:
            raise ToolFailed(text or f"`{name}` failed")
        return text or "(it returned nothing)"


def _schema_and_description(listed: Any) -> tuple[dict[str, Any], str]:
    """Return the schema of a tool's arguments, and its description.

    A schema that no grammar can express goes into the description, and the server checks the arguments.
    """
    description = visible(listed.description or listed.name)
    schema = _without_own_keys({"properties": {}, **listed.input_schema, "type": "object"})
    try:
        grammar.from_schema(schema, listed.name)
    except BadValue:
        return {"type": "object", "properties": {}}, f"{description} Its arguments: {json.dumps(schema)}"
    return schema, description


def _without_own_keys(value: Any) -> Any:
    """Return a foreign schema without the keys that mean something to localspec's own grammars."""
    if isinstance(value, list):
        return [_without_own_keys(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_own_keys(each) for key, each in value.items() if key not in OWN_KEYS}


def format_cause(error: BaseException) -> str:
    """Return the type and the message of an error, or of the first of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
