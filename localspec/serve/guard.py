"""Refuses what a server on a user's own machine must not answer: foreign pages, wrong keys, huge bodies."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.serve import faults
from localspec.serve.web import routes as web

OPEN = {"/health", *web.FILES}  # paths that need no key
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_BODY = 10_000_000  # bytes


class Guard:
    """ASGI middleware. It checks, in this order, what costs least.

    Host: a page that has its name rebound to 127.0.0.1 sends its own name. Origin: a browser names the page
    that asks. The key, in constant time, as `Authorization: Bearer KEY` or `x-api-key`. The size of the body.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str] | None, key: str | None) -> None:
        """Allow `hosts` as names of this server, any if None; `key` None asks for none."""
        self._app, self._key = app, key
        self._hosts = None if hosts is None else {*LOOPBACK, *hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused, pass on any other."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if refusal := self._refusal(headers, scope["path"]):
            await _refuse(send, scope["path"], *refusal)
            return
        body = _Body(receive)
        await self._app(scope, body.receive, send)

    def _refusal(self, headers: dict[str, str], path: str) -> tuple[int, str] | None:
        if self._hosts is not None and _name(headers.get("host", "")) not in self._hosts:
            return 403, "The Host header names another machine"
        if (origin := headers.get("origin")) is not None and not self._own(origin, headers.get("host", "")):
            return 403, "Pages of other sites may not use this server"
        if self._key is not None and path not in OPEN:
            given = headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._key.encode()):
                return 401, "The API key is missing or wrong: send `Authorization: Bearer KEY`"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY:
            return 413, f"The body has {length} bytes, and at most {MAX_BODY:,} are read"
        return None

    def _own(self, origin: str, host: str) -> bool:
        """Return whether a page is one of this machine, or this server's own by any name it has."""
        parts = urlsplit(origin)
        own = self._hosts is None and parts.netloc.lower() == host.lower()
        return own or (parts.hostname or "") in (self._hosts or LOOPBACK)


class _Body:
    """Counts the bytes of a body that does not say how many it has."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._size = receive, 0

    async def receive(self) -> Message:
        message = await self._receive()
        self._size += len(message.get("body", b""))
        if self._size > MAX_BODY:
            raise HTTPException(413, f"The body has more than {MAX_BODY:,} bytes")
        return message


def _name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    return urlsplit(f"//{host}").hostname or ""


async def _refuse(send: Send, path: str, status: int, message: str) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(faults.body_of(path, message)).encode()})
