"""OpenAI's paths."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from localspec.errors import UnsupportedModel
from localspec.library import Library
from localspec.library.catalogue import TEXT
from localspec.serve.openai.requests import ChatCompletion, Completion, Embeddings
from localspec.serve.openai.responses import ChatWriter, CompletionWriter
from localspec.serve.pool import Pool, known
from localspec.serve.respond import respond


def routes(pool: Pool, library: Library) -> APIRouter:
    """Return the paths of OpenAI's API for the models of a pool."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(model.name) for model in library.all(TEXT)]}

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        return _model(known(pool, library, name))

    @router.post("/chat/completions")
    async def chat(body: ChatCompletion, client: Request) -> Response:
        served = await pool.get(known(pool, library, body.model))
        requests = body.requests()
        writer = ChatWriter(body.model, answers=len(requests), each=body.each, with_usage=body.with_usage)
        return await respond(served, requests, client, writer, streams=body.stream)

    @router.post("/completions")
    async def completions(body: Completion, client: Request) -> Response:
        served = await pool.get(known(pool, library, body.model))
        requests = body.requests()
        writer = CompletionWriter(
            body.model, answers=len(requests), each=body.each, with_usage=body.with_usage
        )
        return await respond(served, requests, client, writer, streams=body.stream)

    @router.post("/embeddings")
    async def embeddings(body: Embeddings) -> None:
        name = known(pool, library, body.model)
        raise UnsupportedModel(f"`{name}` makes no embeddings", "The models of the library write text")

    return router


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "localspec"}
