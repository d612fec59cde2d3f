"""Responses: whole, or as a stream of lines, for as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request as Client
from fastapi.responses import Response, StreamingResponse

from localspec.errors import LocalspecError
from localspec.serve.faults import Json, body_of, message_of
from localspec.serve.generation import End, Event, Request
from localspec.serve.pool import Served

CLIENT_LEFT = 499  # nginx's code: nobody reads the response


class Writer(Protocol):
    """Makes an API's objects of one response."""

    media_type: str

    def add(self, event: Event, index: int = 0) -> list[Any]:
        """Take in an event of the answer number `index`; return the objects that it adds to a stream."""

    def line(self, added: Any) -> str:
        """Return such an object as text of the stream."""

    def complete(self) -> dict[str, Any]:
        """Return the whole response, once all answers have ended."""


async def respond(
    served: Served, requests: Request | Sequence[Request], client: Client, writer: Writer, *, streams: bool
) -> Response:
    """Return the answers to requests in one response; raises what `Served.answer` raises."""
    asked = [requests] if isinstance(requests, Request) else requests
    events = _merged([served.answer(request) for request in asked])
    if streams:
        first = await anext(events)  # an error is still a status here
        lines = _lines(first, events, writer, client.url.path)
        return StreamingResponse(lines, media_type=writer.media_type)
    ends: list[End] = []
    async with aclosing(events):
        async for index, event in events:
            writer.add(event, index)
            if isinstance(event, End):
                ends.append(event)
            elif await client.is_disconnected():
                return Response(status_code=CLIENT_LEFT)
    headers = {"x-localspec-tokens-per-pass": _tokens_per_pass(ends)}
    return Json(writer.complete(), headers=headers)


def _tokens_per_pass(ends: Sequence[End]) -> str:
    stats = [end.answer.stats for end in ends]
    return f"{sum(each.tokens for each in stats) / max(1, sum(each.passes for each in stats)):.2f}"


async def _lines(
    first: tuple[int, Event], events: AsyncGenerator[tuple[int, Event], None], writer: Writer, path: str
) -> AsyncIterator[str]:
    """Yield the lines of a stream, whose last one is an error if that ends it."""
    async with aclosing(events):
        for added in writer.add(first[1], first[0]):
            yield writer.line(added)
        try:
            async for index, event in events:
                for added in writer.add(event, index):
                    yield writer.line(added)
        except LocalspecError as error:
            yield writer.line(body_of(path, message_of(error)))


async def _merged(
    answers: Sequence[AsyncGenerator[Event, None]],
) -> AsyncGenerator[tuple[int, Event], None]:
    """Yield the events of several answers as they come, each with its answer's number.

    Raises what they raise; leaving the loop leaves all answers.
    """
    if len(answers) == 1:
        async with aclosing(answers[0]):
            async for event in answers[0]:
                yield 0, event
        return
    found: asyncio.Queue[tuple[int, Event] | BaseException | None] = asyncio.Queue()

    async def drain(number: int, answer: AsyncGenerator[Event, None]) -> None:
        async with aclosing(answer):
            async for event in answer:
                found.put_nowait((number, event))

    def ended(task: asyncio.Task[None]) -> None:
        found.put_nowait(None if task.cancelled() else task.exception())

    tasks = [asyncio.create_task(drain(number, answer)) for number, answer in enumerate(answers)]
    for task in tasks:
        task.add_done_callback(ended)
    left = len(tasks)
    try:
        while left:
            if isinstance(got := await found.get(), BaseException):
                raise got
            if got is None:
                left -= 1
            else:
                yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
