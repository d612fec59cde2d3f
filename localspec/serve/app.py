"""The application: the APIs behind one guard, and errors as the clients expect them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from localspec.errors import LocalspecError, UnknownModel
from localspec.library import Library
from localspec.serve.guard import Guard
from localspec.serve.openai.routes import routes as openai_routes
from localspec.serve.pool import Busy, Pool


def create(pool: Pool, library: Library, *, hosts: Sequence[str] | None, key: str | None = None) -> FastAPI:
    """Return the application for the models of a pool.

    `hosts` are the names of this server beside those of the machine itself, None for any; `key` is the API
    key that requests must have, None for none.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        pool.close()

    app = FastAPI(title="localspec", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Guard, hosts=hosts, key=key)
    app.include_router(openai_routes(pool, library))
    app.add_exception_handler(LocalspecError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _failed)

    @app.get("/health")
    def health() -> dict[str, object]:
        return {"status": "ok", "models": [served.name for served in pool.loaded]}

    return app


def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, LocalspecError)
    message = " ".join(filter(None, [f"{error.message}.", error.hint]))
    if isinstance(error, Busy):
        return _error(503, message, "overloaded_error", retry_after=error.seconds)
    return _error(404 if isinstance(error, UnknownModel) else 400, message)


def _malformed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    field = ".".join(str(part) for part in fault["loc"] if part != "body")
    unknown = fault["type"] == "extra_forbidden"
    message = "It is not supported" if unknown else fault["msg"]
    return _error(400, f"`{field}`: {message}" if field else message, param=field or None)


def _failed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, str(error.detail))


def _error(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    *,
    param: str | None = None,
    retry_after: int | None = None,
) -> JSONResponse:
    headers = {"retry-after": str(retry_after)} if retry_after else None
    body = {"error": {"message": message, "type": kind, "param": param, "code": None}}
    return JSONResponse(body, status, headers)
