"""The HTTP server: connections that end when their client sends or reads too slowly."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, ClassVar

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a server waits for a client, in seconds."""

    headers: float = 10.0
    pause: float = 30.0  # without a byte of a body
    body: float = 300.0
    reading: float = 30.0  # without an answer's bytes being read


class Server(uvicorn.Server):
    """A server that ends its answers before it ends."""

    def __init__(self, config: uvicorn.Config, end: Callable[[], None]) -> None:
        super().__init__(config)
        self._end = end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End the answers, and then the server."""
        self._end()
        super().handle_exit(sig, frame)


def make(
    app: FastAPI, limits: Limits | None = None, end: Callable[[], None] = lambda: None
) -> uvicorn.Server:
    """Return a server of an application; on Ctrl-C and SIGTERM it calls `end`."""

    class Connection(LimitedConnection):
        """A connection with these limits."""

    Connection.limits = limits or Limits()
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    return Server(config, end)


def run(app: FastAPI, listening: socket.socket, end: Callable[[], None]) -> None:
    """Serve an application on a socket until Ctrl-C or SIGTERM, when its answers must `end`."""
    make(app, end=end).run(sockets=[listening])


class Timer:
    """Ends a connection at a time, unless it is stopped before."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop, at: float, transport: asyncio.Transport) -> None:
        """End the connection at a time of the loop, and at no earlier one."""
        self.stop()
        self._handle = loop.call_at(at, transport.abort)

    def stop(self) -> None:
        """Let the connection be."""
        if self._handle is not None:
            self._handle.cancel()


class LimitedConnection(H11Protocol):
    """A connection of uvicorn that ends when its client is too slow.

    uvicorn itself ends idle connections between two requests alone. Bytes of headers prolong nothing; those
    of a body do, up to its whole time.
    """

    limits: ClassVar[Limits]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._phase, self._since = "", 0.0
        self._sending, self._reading = Timer(), Timer()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the headers."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers or the body."""
        super().data_received(data)
        self._wait()

    def on_response_complete(self) -> None:
        """Leave the time between two requests to uvicorn."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._sending.stop()
            self._phase = ""
        else:  # the next request has come already
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._sending.stop()
        self._reading.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._reading.start(self.loop, self.loop.time() + self.limits.reading, self.transport)

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        self._reading.stop()
        super().resume_writing()

    def _wait(self) -> None:
        now = self.loop.time()
        phase = {h11.IDLE: "headers", h11.SEND_BODY: "body"}.get(self.conn.their_state, "")
        begins, self._phase = phase != self._phase, phase
        if begins:
            self._since = now
        if phase == "body":
            end = min(now + self.limits.pause, self._since + self.limits.body)
            self._sending.start(self.loop, end, self.transport)
        elif phase == "headers" and begins:
            self._sending.start(self.loop, now + self.limits.headers, self.transport)
        elif begins:
            self._sending.stop()
