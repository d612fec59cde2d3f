"""Errors as the clients of each API read them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from localspec.errors import LocalspecError, TooLittleMemory, UnknownModel
from localspec.serve.pool import Busy


def handle(app: FastAPI) -> None:
    """Let an application answer errors."""
    app.add_exception_handler(LocalspecError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _failed)


def body_of(path: str, message: str, kind: str = "invalid_request_error", param: str | None = None) -> Any:
    """Return the body of an error: Ollama's clients read a text, those of OpenAI and Anthropic an object."""
    if path.startswith("/api/"):
        return {"error": message}
    return {"type": "error", "error": {"message": message, "type": kind, "param": param, "code": None}}


def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, LocalspecError)
    message = " ".join(filter(None, [f"{error.message}.", error.hint]))
    if isinstance(error, Busy):
        body = body_of(request.url.path, message, "overloaded_error")
        return JSONResponse(body, 503, {"retry-after": str(error.seconds)})
    if isinstance(error, TooLittleMemory):
        return JSONResponse(body_of(request.url.path, message, "overloaded_error"), 503)
    status = 404 if isinstance(error, UnknownModel) else 400
    return JSONResponse(body_of(request.url.path, message), status)


def _malformed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    field = ".".join(str(part) for part in fault["loc"] if part != "body")
    said = "It is not supported" if fault["type"] == "extra_forbidden" else fault["msg"]
    message = f"`{field}`: {said}" if field else said
    return JSONResponse(body_of(request.url.path, message, param=field or None), 400)


def _failed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(body_of(request.url.path, str(error.detail)), error.status_code)
