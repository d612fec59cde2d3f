"""Tools of MCP servers, by the `mcp` package; the file that names them is that of other clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from localspec.agent.files import shortened
from localspec.errors import BadValue, LocalspecError, MissingExtra
from localspec.tools import Tool, ToolFailed

STARTING = 60.0  # seconds that a server has to start: `npx` and `uvx` fetch it the first time
SECONDS = 120.0  # that one call may take
LEAVING = 10.0

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
    except (OSError, ValueError) as error:
        raise BadValue(f"`{path}` is not JSON: {error}", 'It looks like {"mcpServers": {...}}') from None
    servers = values.get("mcpServers", values.get("servers")) if isinstance(values, dict) else None
    if not isinstance(servers, dict):
        raise BadValue(f"`{path}` names no servers", 'It looks like {"mcpServers": {...}}')
    for name, one in servers.items():
        if not isinstance(one, dict) or not isinstance(one.get("command", one.get("url")), str):
            raise BadValue(f"`{name}` in `{path}` has neither a `command` nor a `url`", None)
        if not all(isinstance(word, str) for word in one.get("args", [])):
            raise BadValue(f"`args` of `{name}` in `{path}` are not all texts", "Write them in quotes")
    return {name: one for name, one in servers.items() if not one.get("disabled")}


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

    def start(self) -> None:
        """Connect and list the tools; raises ServerFailed."""
        command = self._given.get("command")
        if command and shutil.which(command, path=self._path()) is None:
            raise ServerFailed(f"There is no program `{command}`, which runs the server `{self.name}`", None)
        try:
            found = self._loop.run(self._connect(), STARTING)
        except TimeoutError:
            raise ServerFailed(
                f"The server `{self.name}` did not answer in {STARTING:g} seconds", None
            ) from None
        except Exception as error:  # whatever a server or its transport raises
            raise ServerFailed(f"The server `{self.name}` did not start: {reason(error)}", None) from None
        self.tools = [self._tool(one) for one in found]

    def stop(self) -> None:
        """Close the connection, which ends the server's process."""
        if self._task is not None:
            with suppress(Exception):  # it may be dead already
                self._loop.run(self._leave(), LEAVING)

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
            async with Client(self._place(), read_timeout_seconds=SECONDS) as client:
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
            if ready.done():
                raise
            ready.set_exception(error if isinstance(error, Exception) else ServerFailed(str(error)))
        finally:
            self._client = None

    def _place(self) -> Any:
        if "command" not in self._given:
            return self._http()
        from mcp import StdioServerParameters

        options = {key: self._given[key] for key in ("args", "env", "cwd") if self._given.get(key)}
        return StdioServerParameters(command=self._given["command"], **options)

    def _http(self) -> Any:
        url, headers = self._given["url"], self._given.get("headers")
        if not headers:
            return url
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        return streamable_http_client(url, http_client=httpx2.AsyncClient(headers=headers, timeout=SECONDS))

    async def _leave(self) -> None:
        assert self._stopped is not None
        assert self._task is not None
        self._stopped.set()
        await self._task

    def _tool(self, found: Any) -> Tool:
        def run(**arguments: Any) -> str:
            return self._call(found.name, arguments)

        name = re.sub(r"[^\w-]", "_", f"{self.name}_{found.name}")
        schema = dict(found.input_schema)
        return Tool(name, found.description or found.name, schema, run, access="run")

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
