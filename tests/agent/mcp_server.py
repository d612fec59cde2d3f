"""A small MCP server, over stdio or HTTP, with tools that behave and tools that do not."""

from __future__ import annotations

import os
import sys
import time

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("small")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def environment(name: str) -> str:
    """Tell a variable of the environment."""
    return os.environ.get(name, "not set")


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
def die() -> str:
    """End in the middle of a call."""
    os._exit(3)


@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(600)
    return ""


@server.tool()
def much() -> str:
    """Tell very much."""
    return "x" * 1_000_000


@server.tool()
def nothing() -> None:
    """Return nothing."""


@server.tool(name="pid/of me")
def pid() -> int:
    """Tell the process."""
    return os.getpid()


if __name__ == "__main__":
    print("\x1b[31mloud on stderr", file=sys.stderr, flush=True)
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
