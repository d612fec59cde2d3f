"""Anthropic's paths."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from localspec.library import Library
from localspec.serve.anthropic.requests import Count, Messages
from localspec.serve.anthropic.responses import MessageWriter
from localspec.serve.pool import Pool, known
from localspec.serve.respond import respond


def routes(pool: Pool, library: Library) -> APIRouter:
    """Return the paths of Anthropic's API for the models of a pool."""
    router = APIRouter(prefix="/v1/messages")

    @router.post("")
    async def messages(body: Messages, client: Request) -> Response:
        served = await pool.get(known(pool, library, body.model))
        return await respond(served, body.request(), client, MessageWriter(body.model), streams=body.stream)

    @router.post("/count_tokens")
    async def count(body: Count) -> dict[str, int]:
        served = await pool.get(known(pool, library, body.model))
        return {"input_tokens": await served.count(body.request())}

    return router
