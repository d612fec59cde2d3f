"""The path of the Responses API."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from localspec.library import Library
from localspec.serve.pool import Pool, known
from localspec.serve.respond import respond
from localspec.serve.responses.requests import CreateResponse
from localspec.serve.responses.writer import ResponseWriter


def routes(pool: Pool, library: Library) -> APIRouter:
    """Return the path of the Responses API for the models of a pool."""
    router = APIRouter(prefix="/v1/responses")

    @router.post("")
    async def create(body: CreateResponse, client: Request) -> Response:
        served = await pool.get(known(pool, library, body.model))
        writer = ResponseWriter(body.told())
        return await respond(served, body.request(), client, writer, streams=bool(body.stream))

    return router
