"""OpenAI's paths."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from localspec.library import Library
from localspec.serve.generation import End, Event
from localspec.serve.openai.requests import ChatCompletion, Completion
from localspec.serve.openai.responses import ChatWriter, CompletionWriter, stream
from localspec.serve.pool import Pool, Served, known

CLIENT_LEFT = 499  # nginx's code: nobody reads the response


def routes(pool: Pool, library: Library) -> APIRouter:
    """Return the paths of OpenAI's API for the models of a pool."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(model.name) for model in library.all()]}

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        return _model(known(pool, library, name))

    @router.post("/chat/completions")
    async def chat(body: ChatCompletion, client: Request) -> Response:
        served = await pool.get(known(pool, library, body.model))
        return await _respond(served, body, client, ChatWriter(body.model))

    @router.post("/completions")
    async def completions(body: Completion, client: Request) -> Response:
        served = await pool.get(known(pool, library, body.model))
        return await _respond(served, body, client, CompletionWriter(body.model))

    return router


async def _respond(
    served: Served, body: ChatCompletion | Completion, client: Request, writer: ChatWriter
) -> Response:
    events = served.answer(body.request())
    if not body.stream:
        async with aclosing(events):
            async for event in events:
                writer.add(event)
                if isinstance(event, End):
                    speed = {"x-localspec-tokens-per-pass": f"{event.answer.stats.tokens_per_pass:.2f}"}
                    return JSONResponse(writer.complete(event), headers=speed)
                if await client.is_disconnected():
                    break
        return Response(status_code=CLIENT_LEFT)
    first = await anext(events)  # an error is still a status here
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    lines = stream(_with(first, events), writer, with_usage)
    return StreamingResponse(lines, media_type="text/event-stream")


async def _with(first: Event, events: AsyncGenerator[Event, None]) -> AsyncIterator[Event]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "localspec"}
