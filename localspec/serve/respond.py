"""Responses: whole, or as a stream of lines, for as long as the client is there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request as Client
from fastapi.responses import JSONResponse, Response, StreamingResponse

from localspec.serve.generation import End, Event, Request
from localspec.serve.pool import Served

CLIENT_LEFT = 499  # nginx's code: nobody reads the response


class Writer(Protocol):
    """Makes an API's objects of one answer."""

    media_type: str

    def lines(self, event: Event) -> Iterator[str]:
        """Take in an event; yield the lines that it adds to a stream."""

    def complete(self, end: End) -> dict[str, Any]:
        """Return the whole answer."""


async def respond(
    served: Served, request: Request, client: Client, writer: Writer, *, streams: bool
) -> Response:
    """Return the answer to a request; raises what `Served.answer` raises."""
    events = served.answer(request)
    if streams:
        first = await anext(events)  # an error is still a status here
        return StreamingResponse(_lines(first, events, writer), media_type=writer.media_type)
    async with aclosing(events):
        async for event in events:
            for _ in writer.lines(event):
                pass
            if isinstance(event, End):
                speed = {"x-localspec-tokens-per-pass": f"{event.answer.stats.tokens_per_pass:.2f}"}
                return JSONResponse(writer.complete(event), headers=speed)
            if await client.is_disconnected():
                break
    return Response(status_code=CLIENT_LEFT)


async def _lines(first: Event, events: AsyncGenerator[Event, None], writer: Writer) -> AsyncIterator[str]:
    async with aclosing(events):
        for line in writer.lines(first):
            yield line
        async for event in events:
            for line in writer.lines(event):
                yield line
