"""The page's paths: its own files by their names, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response

FOLDER = Path(__file__).with_name("page")
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FILES = {
    "/" if file.name == INDEX else f"/web/{file.name}": file
    for file in sorted(FOLDER.iterdir())
    if file.suffix in TYPES
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def routes() -> APIRouter:
    """Return the paths of the page."""
    router = APIRouter()
    for path, file in FILES.items():
        router.add_api_route(path, _answers(file), methods=["GET", "HEAD"])
    return router


def _answers(file: Path) -> Callable[[], Response]:
    content, media_type = file.read_bytes(), TYPES[file.suffix]

    def answer() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return answer
