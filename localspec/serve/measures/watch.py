"""Watches requests from outside: counts each, and writes a line about it if the user wants one."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.serve.measures.counts import Counts
from localspec.serve.measures.record import CURRENT, Record

UNKNOWN = "other"  # stands for paths that the server does not have: a client could make up any number
LEFT, FAILED = 499, 500  # before the response began: the client left, or the server has a fault

Log = Callable[[str], None]


class Watch:
    """ASGI middleware. A line has neither the text of a request or an answer, nor a key."""

    def __init__(self, app: ASGIApp, *, counts: Counts, log: Log | None, paths: Collection[str]) -> None:
        self._app, self._counts, self._log, self._paths = app, counts, log, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and take it down when it ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record, status, started = Record(), LEFT, perf_counter()
        token = CURRENT.set(record)

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:
            status = FAILED if status == LEFT else status
            raise
        finally:
            CURRENT.reset(token)
            self._ended(scope, record, status, perf_counter() - started)

    def _ended(self, scope: Scope, record: Record, status: int, seconds: float) -> None:
        self._counts.request(self._path(scope), status)
        for end in record.ends:
            self._counts.answer(record.model or UNKNOWN, end)
        if self._log is not None:
            self._log(json.dumps(_line(scope, record, status, seconds)))

    def _path(self, scope: Scope) -> str:
        """Return the path of a request as the server declares it."""
        if route := scope.get("route"):
            return str(route.path)
        path = str(scope["path"])  # of a request that was refused before it was routed
        return path if path in self._paths else UNKNOWN


def _line(scope: Scope, record: Record, status: int, seconds: float) -> dict[str, Any]:
    """Return what is written about a request: the sums of its answers, 0 without one."""
    answers = [end.answer for end in record.ends]
    stats = [answer.stats for answer in answers]
    client = scope.get("client")
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": scope["path"],
        "model": record.model,
        "status": status,
        "seconds": round(seconds, 3),
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "tokens": sum(len(answer.token_ids) for answer in answers),
        "accepted": sum(each.accepted for each in stats),
        "drafted": sum(each.drafted for each in stats),
    }
