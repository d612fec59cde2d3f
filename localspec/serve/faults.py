"""Errors as the clients of each API read them."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from localspec.errors import LocalspecError, TooLittleMemory, UnknownModel
from localspec.serve.pool import Busy, Ending


class Json(Response):
    """JSON in ASCII: half a character of a client, which UTF-8 does not have, is an escape."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the bytes of a value."""
        return json.dumps(content).encode("ascii")


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


def message_of(error: LocalspecError) -> str:
    """Return an error in a line."""
    return " ".join(filter(None, [f"{error.message}.", error.hint]))


def _refused(request: Request, error: Exception) -> Json:
    assert isinstance(error, LocalspecError)
    message = message_of(error)
    if isinstance(error, Busy):
        body = body_of(request.url.path, message, "overloaded_error")
        return Json(body, 503, {"retry-after": str(error.seconds)})
    if isinstance(error, TooLittleMemory | Ending):
        return Json(body_of(request.url.path, message, "overloaded_error"), 503)
    status = 404 if isinstance(error, UnknownModel) else 400
    return Json(body_of(request.url.path, message), status)


def _malformed(request: Request, error: Exception) -> Json:
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    field = ".".join(str(part) for part in fault["loc"] if part != "body")
    said = "It is not supported" if fault["type"] == "extra_forbidden" else fault["msg"]
    message = f"`{field}`: {said}" if field else said
    return Json(body_of(request.url.path, message, param=field or None), 400)


def _failed(request: Request, error: Exception) -> Json:
    assert isinstance(error, HTTPException)
    return Json(body_of(request.url.path, str(error.detail)), error.status_code)
