"""The application: the APIs behind one guard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response

from localspec import devices
from localspec.library import Library
from localspec.serve import faults
from localspec.serve.anthropic.routes import routes as anthropic_routes
from localspec.serve.guard import Guard
from localspec.serve.measures.counts import MEDIA_TYPE, Counts
from localspec.serve.measures.watch import Log, Watch
from localspec.serve.ollama.routes import routes as ollama_routes
from localspec.serve.openai.routes import routes as openai_routes
from localspec.serve.pool import Pool
from localspec.serve.responses.routes import routes as responses_routes
from localspec.serve.web.routes import routes as web_routes

APIS = (anthropic_routes, ollama_routes, openai_routes, responses_routes)
LOOK = 5.0  # seconds between two looks for idle models


def create(
    pool: Pool,
    library: Library,
    *,
    hosts: Sequence[str] | None,
    key: str | None = None,
    log: Log | None = None,
    more: Sequence[APIRouter] = (),
) -> FastAPI:
    """Return the application for the models of a pool.

    `hosts` are the names of this server beside those of the machine itself, None for any; `key` is the API
    key that requests must have, None for none; `log` takes a line for each request; `more` are
    further paths.
    """
    counts = Counts(pool)
    app = FastAPI(
        title="localspec", openapi_url=None, docs_url=None, redoc_url=None, lifespan=_lifespan(pool)
    )
    app.add_middleware(Guard, hosts=hosts, key=key)
    routers = [*(routes(pool, library) for routes in APIS), *more]
    for router in (*routers, web_routes()):
        app.include_router(router)
    paths = {str(getattr(route, "path", "")) for router in routers for route in router.routes}
    app.add_middleware(Watch, counts=counts, log=log, paths=paths)  # outermost: sees what the guard refuses
    faults.handle(app)

    @app.get("/health")
    def health() -> dict[str, object]:
        return {"status": "ok", "models": [served.name for served in pool.loaded]}

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(counts.page(), media_type=MEDIA_TYPE)

    return app


def _lifespan(pool: Pool) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Return what runs beside the application: idle models and freed memory go, at its end all models."""

    async def tidy() -> None:
        while True:
            await asyncio.sleep(LOOK)
            pool.drop_idle()
            if pool.rests():
                await asyncio.to_thread(devices.trim_memory)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        dropping = asyncio.create_task(tidy())
        yield
        dropping.cancel()
        pool.close()

    return lifespan
