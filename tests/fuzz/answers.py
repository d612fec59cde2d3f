"""A server on loopback that sends damaged HTTP answers, byte for byte."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATA = b"GGUF" + bytes(100)
ENTRY = {"rfilename": "m.gguf", "size": len(DATA), "lfs": {"sha256": hashlib.sha256(DATA).hexdigest()}}
LISTING = json.dumps({"sha": COMMIT, "siblings": [ENTRY]}).encode()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return a whole answer."""
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(body: bytes) -> bytes:
    """Return a whole answer in chunks."""
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return start + b"%x\r\n%s\r\n5;a=b\r\n%s\r\n0\r\n\r\n" % (len(body) - 5, body[:-5], body[-5:])


MOVED = answer(
    b"gone", "Location: /api/models/o/n?blobs=true", "X-Error-Code: RepoNotFound", status="307 Moved"
)
BUSY = answer(b'{"error": "busy"}', "Retry-After: 1", "Content-Type: application/json", status="429 Busy")
PART = answer(DATA, 'ETag: "ab"', f"Content-Range: bytes 0-{len(DATA) - 1}/{len(DATA)}", status="206 Part")


class Server:
    """Answers each request with the next bytes for a part of its path, the last again and again."""

    def __init__(self) -> None:
        self.answers: dict[bytes, list[bytes]] = {}
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection:
                try:
                    request = connection.recv(1 << 16)
                    found = next(left for part, left in self.answers.items() if part in request)
                    connection.sendall(found.pop(0) if len(found) > 1 else found[0])
                except (OSError, StopIteration):
                    continue


@cache
def server(process: int) -> Server:
    """Return the server of this process: a thread does not survive a fork."""
    return Server()


@contextmanager
def answering(folder: Path, **answers: list[bytes]) -> Iterator[Server]:
    """Make the hub client talk to a server with these answers, by parts of the path, and an empty cache."""
    found = server(os.getpid())
    found.answers = {part.encode(): data for part, data in answers.items()}
    shutil.rmtree(folder / "hub", ignore_errors=True)
    environment = {
        "HF_ENDPOINT": found.url,
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_DOWNLOAD_TIMEOUT": "2",
    }
    with patch.dict(os.environ, environment), patch("localspec.library.download.retry.sleep", _no_wait):
        yield found


def _no_wait(seconds: float) -> None:
    pass


def fetch(folder: Path, **answers: list[bytes]) -> Any:
    """Fetch a model from a server with these answers."""
    from localspec.library import Silent
    from localspec.library.download import hub
    from localspec.library.sources import Source

    with answering(folder, **answers):
        return hub.fetch(Source.parse("hf:o/m"), Silent())
