"""Tools of MCP servers, by the `mcp` package; the file that names them is that of other clients."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from localspec.agent.files import shortened
from localspec.agent.shell import visible
from localspec.errors import BadValue, LocalspecError, MissingExtra
from localspec.output import grammar
from localspec.tools import Tool, ToolFailed

STARTING = 60.0  # seconds that a server has to start: `npx` and `uvx` fetch it the first time
SECONDS = 120.0  # that one call may take
LEAVING = 10.0
LAST = 4000  # characters of what a server said

Result = TypeVar("Result")


class ServerFailed(LocalspecError):
    """An MCP server that cannot be started or does not answer."""


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the servers that a file names, `{"mcpServers": {NAME: {"command" or "url": ...}}}`.

    Raises BadValue for a file that is none.
    """
    try:
        values = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise BadValue(f"There is no file `{path}`", "Check the path") from None
    except OSError as error:
        raise BadValue(f"`{path}` cannot be read: {error.strerror}", "Check the path") from None
    except (ValueError, RecursionError) as error:
        raise BadValue(f"`{path}` is not JSON: {error}", 'It looks like {"mcpServers": {...}}') from None
    servers = values.get("mcpServers", values.get("servers")) if isinstance(values, dict) else None
    if not isinstance(servers, dict):
        raise BadValue(f"`{path}` names no servers", 'It looks like {"mcpServers": {...}}')
    for name, one in servers.items():
        _check(one, f"`{name}` in `{path}`")
    return {name: one for name, one in servers.items() if not one.get("disabled")}


def _check(one: Any, shown: str) -> None:
    """Raise BadValue where `one` does not say how to reach a server."""
    if not isinstance(one, dict) or not isinstance(one.get("command", one.get("url")), str):
        raise BadValue(
            f"{shown} has neither a `command` nor a `url`", 'It looks like {"command": "uvx", "args": [...]}'
        )
    if not _texts(one.get("args", [])):
        raise BadValue(f"`args` of {shown} are not a list of texts", 'Write ["one", "two"]')
    for key in ("env", "headers"):
        found = one.get(key) or {}
        if not isinstance(found, dict) or not _texts(list(found.values())):
            raise BadValue(f"`{key}` of {shown} is not an object of texts", 'Write {"NAME": "value"}')


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


@contextmanager
def connected(servers: Mapping[str, Mapping[str, Any]]) -> Iterator[list[Tool]]:
    """Start the servers and yield their tools, named SERVER_TOOL; they end with the block.

    Raises MissingExtra without the `mcp` package, ServerFailed for a server that does not start. A call to
    one that has died since is a ToolFailed, which a model is told.
    """
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise MissingExtra("mcp", "mcp") from None
    logging.getLogger("mcp").addHandler(logging.NullHandler())  # what a server babbles is no news
    held = _Loop()
    running = [_Server(name, dict(one), held) for name, one in servers.items()]
    try:
        for server in running:
            server.start()
        yield [tool for server in running for tool in server.tools]
    finally:
        for server in running:
            server.stop()
        held.close()


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], seconds: float) -> Result:
        """Return what `work` returns; raises TimeoutError, and what it raises."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LEAVING)
        if not self._thread.is_alive():
            self._loop.close()


class _Server:
    """One server: a task holds its connection from start to stop."""

    def __init__(self, name: str, given: dict[str, Any], loop: _Loop) -> None:
        self.name = name
        self.tools: list[Tool] = []
        self._given = given
        self._loop = loop
        self._client: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stopped: asyncio.Event | None = None
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # on its stderr, till `stop`

    def start(self) -> None:
        """Connect and list the tools; raises ServerFailed."""
        command = self._given.get("command")
        if command and shutil.which(command, path=self._path()) is None:
            raise ServerFailed(
                f"There is no program `{command}`, which runs the server `{self.name}`",
                "Install it, or write its whole path",
            )
        try:
            found = self._loop.run(self._connect(), STARTING)
        except TimeoutError:
            raise ServerFailed(
                f"The server `{self.name}` did not answer in {STARTING:g} seconds", self._hint()
            ) from None
        except Exception as error:  # whatever a server or its transport raises
            raise ServerFailed(
                f"The server `{self.name}` did not start: {reason(error)}", self._hint()
            ) from None
        self.tools = [self._tool(one) for one in found]

    def stop(self) -> None:
        """Close the connection, which ends the server's process."""
        if self._task is not None:
            with suppress(Exception):  # it may be dead already
                self._loop.run(self._leave(), 2 * LEAVING)
        self._said.close()

    def _hint(self) -> str:
        """Return what the server said last, or how to see more."""
        self._said.seek(0)
        lines = [line for line in visible(self._said.read()[-LAST:]).splitlines() if line.strip()]
        if lines:
            return f"It says: {lines[-1].strip()}"
        return f"Try `{self._given['command']}` by hand" if "command" in self._given else "Check its `url`"

    def _path(self) -> str | None:
        return (self._given.get("env") or {}).get("PATH") or os.environ.get("PATH")

    async def _connect(self) -> list[Any]:
        ready: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._stopped = asyncio.Event()
        self._task = asyncio.create_task(self._hold(ready))
        return await ready

    async def _hold(self, ready: asyncio.Future[list[Any]]) -> None:
        from mcp import Client

        try:
            async with (
                AsyncExitStack() as stack,
                Client(await self._place(stack), read_timeout_seconds=SECONDS) as client,
            ):
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

    async def _place(self, stack: AsyncExitStack) -> Any:
        """Return how to reach the server; what that needs ends with `stack`."""
        if "command" not in self._given:
            return await self._http(stack)
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        options = {key: self._given[key] for key in ("args", "env", "cwd") if self._given.get(key)}
        return stdio_client(StdioServerParameters(command=self._given["command"], **options), self._said)

    async def _http(self, stack: AsyncExitStack) -> Any:
        url, headers = self._given["url"], self._given.get("headers") or {}
        if self._given.get("type") == "sse":
            from mcp.client.sse import sse_client

            return sse_client(url, headers=headers)
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=SECONDS))
        return streamable_http_client(url, http_client=client)

    async def _leave(self) -> None:
        assert self._stopped is not None
        assert self._task is not None
        self._stopped.set()
        if self._client is None:  # it is still starting
            self._task.cancel()
        await asyncio.wait([self._task], timeout=LEAVING)
        self._task.cancel()

    def _tool(self, found: Any) -> Tool:
        def run(**arguments: Any) -> str:
            return self._call(found.name, arguments)

        name = re.sub(r"[^\w-]", "_", f"{self.name}_{found.name}")
        schema, told = _schema(found)
        return Tool(name, told, schema, run, access="run")

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        client = self._client
        if client is None:
            raise ToolFailed(f"The server `{self.name}` has ended")
        try:
            result = self._loop.run(client.call_tool(name, arguments), SECONDS)
        except TimeoutError:
            raise ToolFailed(f"`{name}` did not answer in {SECONDS:g} seconds") from None
        except Exception as error:  # whatever a server or its transport raises
            raise ToolFailed(f"`{name}` failed: {reason(error)}") from None
        text = shortened("\n".join(_words(one) for one in result.content))
        if result.is_error:
            raise ToolFailed(text or f"`{name}` failed")
        return text or "(it returned nothing)"


def _schema(found: Any) -> tuple[dict[str, Any], str]:
    """Return the schema of a tool's arguments, and what it is for.

    A schema that no grammar can follow is told in words, and the server checks it.
    """
    told = found.description or found.name
    schema = {"properties": {}, **found.input_schema, "type": "object"}
    try:
        grammar.of_schema(schema, found.name)
    except BadValue:
        return {"type": "object", "properties": {}}, f"{told} Its arguments: {json.dumps(schema)}"
    return schema, told


def _words(block: Any) -> str:
    """Return what a block of a result says; what is no text is named."""
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    return f"({block.type})"


def reason(error: BaseException) -> str:
    """Return the first error of a group in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
