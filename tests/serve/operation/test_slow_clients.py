"""Clients that send or read slowly lose their connection, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from localspec.serve import server

LIMITS = server.Limits(headers=0.5, pause=0.5, body=1.5, reading=0.5)
SECONDS = 60


class Running:
    """A server with small limits, whose `/endless` never ends by itself."""

    def __init__(self) -> None:
        self.left = threading.Event()  # once the endless answer was ended from outside
        self._server = server.make(self._app(), LIMITS)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()

    def _app(self) -> FastAPI:
        app = FastAPI()

        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0)
            finally:
                self.left.set()

        @app.get("/endless")
        def endless() -> StreamingResponse:
            return StreamingResponse(pieces())

        @app.post("/size")
        async def size(request: Request) -> int:
            return len(await request.body())

        return app

    def connect(self) -> socket.socket:
        """Return a connection with a small buffer, which waits for a while for each byte."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(SECONDS)
        client.connect(self._socket.getsockname())
        return client

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(SECONDS)
        self._socket.close()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    yield (found := Running())
    found.stop()


def answer(client: socket.socket) -> bytes:
    """Return all that the server sends until it closes the connection."""
    found = b""
    with suppress(ConnectionResetError):
        while piece := client.recv(65536):
            found += piece
    return found


def ended_while_dripping(client: socket.socket) -> bool:
    """Send a byte again and again; return whether the server closes the connection."""
    client.settimeout(0.05)
    for _ in range(20 * SECONDS):
        try:
            client.sendall(b"a")
            if client.recv(1) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_a_client_that_sends_nothing_is_disconnected(running: Running) -> None:
    with running.connect() as client:
        assert answer(client) == b""


def test_headers_byte_by_byte_prolong_nothing(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"GET /endless HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert ended_while_dripping(client)


def test_a_body_that_stops_is_disconnected(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc")
        assert b" 200 " not in answer(client)


def test_a_body_that_drips_for_ever_is_disconnected(running: Running) -> None:
    with running.connect() as client:
        client.sendall(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        assert ended_while_dripping(client)


def test_a_body_in_pieces_is_read(running: Running) -> None:
    with running.connect() as client:
        head = b"POST /size HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 4\r\n\r\n"
        client.sendall(head)
        for piece in (b"a", b"b", b"cd"):
            threading.Event().wait(0.2)
            client.sendall(piece)
        assert answer(client).endswith(b"\r\n\r\n4")


def test_a_second_request_has_its_own_time(running: Running) -> None:
    request = b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\na"
    with running.connect() as client:
        for _ in range(3):
            client.sendall(request)
            found = b""
            while not found.endswith(b"\r\n\r\n1"):
                found += client.recv(4096)
            threading.Event().wait(0.4)
        client.sendall(request[:20])  # and then nothing
        assert answer(client) == b""


def test_a_client_that_does_not_read_loses_its_answer_alone(running: Running) -> None:
    with running.connect() as client, running.connect() as other:
        client.sendall(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        other.sendall(
            b"POST /size HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1\r\n\r\na"
        )
        assert answer(other).endswith(b"\r\n\r\n1")
        assert running.left.wait(SECONDS)
