"""The application: the APIs behind one guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI

from localspec.library import Library
from localspec.serve import faults
from localspec.serve.anthropic.routes import routes as anthropic_routes
from localspec.serve.guard import Guard
from localspec.serve.ollama.routes import routes as ollama_routes
from localspec.serve.openai.routes import routes as openai_routes
from localspec.serve.pool import Pool
from localspec.serve.responses.routes import routes as responses_routes

LOOK = 5.0  # seconds between two looks for idle models


def create(pool: Pool, library: Library, *, hosts: Sequence[str] | None, key: str | None = None) -> FastAPI:
    """Return the application for the models of a pool.

    `hosts` are the names of this server beside those of the machine itself, None for any; `key` is the API
    key that requests must have, None for none.
    """

    async def drop_idle() -> None:
        while True:
            await asyncio.sleep(LOOK)
            pool.drop_idle()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        dropping = asyncio.create_task(drop_idle())
        yield
        dropping.cancel()
        pool.close()

    app = FastAPI(title="localspec", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Guard, hosts=hosts, key=key)
    for routes in (anthropic_routes, ollama_routes, openai_routes, responses_routes):
        app.include_router(routes(pool, library))
    faults.handle(app)

    @app.get("/health")
    def health() -> dict[str, object]:
        return {"status": "ok", "models": [served.name for served in pool.loaded]}

    return app
