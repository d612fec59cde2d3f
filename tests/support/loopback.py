"""A Hugging Face hub on loopback that can be slow, busy, broken, gated or lie; and proxies that remember."""

from __future__ import annotations

import hashlib
import json
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".gguf", ".bin", ".safetensors")


Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Trouble:
    """The reply to the next request of a kind, in place of its answer."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    path: str = ""  # requests whose path has this in it


@dataclass
class Hub:
    """The files of the hub on loopback, and the requests it has received."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    listings: dict[str, bytes] = field(default_factory=dict)  # repository -> the listing in place of its own
    instead: dict[str, Answer] = field(default_factory=dict)  # part of a path -> the answer to such requests
    digests: dict[str, str] = field(default_factory=dict)  # file -> the sha256 that it claims
    troubles: list[Trouble] = field(default_factory=list)  # the first that fits is used up
    silent: bool = False  # about sizes and digests, as a simple mirror is
    whole: bool = False  # answers a Range with everything
    elsewhere: str = ""  # another hub that has the content of large files
    cut_after: int | None = None  # bytes of an answer after which the line breaks
    stalled: float = 0.0  # seconds of silence before the next file, once
    piece: int = 1 << 30  # bytes sent at once, with
    pause: float = 0.0  # seconds between
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range
    tokens: list[str | None] = field(default_factory=list)  # of each request
    sent: int = 0  # bytes of files

    def downloads(self) -> list[tuple[str, str | None]]:
        return [(path, area) for method, path, area in self.asked if method == "GET" and "/resolve/" in path]

    def digest(self, file: str, data: bytes) -> str:
        return self.digests.get(file) or hashlib.sha256(data).hexdigest()

    def trouble(self, path: str) -> Trouble | None:
        found = next((one for one in self.troubles if one.path in path), None)
        if found:
            self.troubles.remove(found)
        return found


def blob(file: str, data: bytes) -> str:
    """Return what git calls a small file."""
    return hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append((self.command, path, self.headers.get("Range")))
            hub.tokens.append(self.headers.get("Authorization"))
            if own := next((hub.instead[part] for part in hub.instead if part in self.path), None):
                own(self)
            elif trouble := hub.trouble(path):
                self.refuse(trouble.status, "", trouble.headers)
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
                self.about(found[1])
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self.file(found[1], found[2], body)
            else:
                self.refuse(404, "EntryNotFound")

        def about(self, name: str) -> None:
            files = hub.repositories.get(name)
            if files is None:
                self.refuse(401, "RepoNotFound")  # the real hub says 401 to strangers
                return
            if name in hub.listings:
                self.plain(hub.listings[name])
                return
            siblings = [self.sibling(file, data) for file, data in files.items()]
            self.json({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})

        def sibling(self, file: str, data: bytes) -> dict[str, Any]:
            if hub.silent:
                return {"rfilename": file}
            found = {"rfilename": file, "size": len(data), "blobId": blob(file, data)}
            if file.endswith(LARGE):
                sha256 = hub.digest(file, data)
                return found | {"lfs": {"size": len(data), "sha256": sha256, "pointerSize": 130}}
            return found

        def file(self, name: str, file: str, body: bool) -> None:
            if name in hub.gated:
                self.refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
                return
            data = hub.repositories.get(name, {}).get(file)
            if data is None:
                self.refuse(404, "EntryNotFound")
                return
            etag = hub.digest(file, data) if file.endswith(LARGE) else blob(file, data)
            if hub.elsewhere and file.endswith(LARGE):
                linked = {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
                place = f"{hub.elsewhere}/{name}/resolve/{COMMIT}/{file}"
                self.refuse(302, "", {**linked, "X-Repo-Commit": COMMIT, "Location": place})
                return
            area = None if hub.whole else self.headers.get("Range")
            start = int((area or "bytes=0-")[6:].partition("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if body:
                self.send(data[start:])

        def send(self, data: bytes) -> None:
            silence, hub.stalled = hub.stalled, 0.0
            time.sleep(silence)
            whole = data[: hub.cut_after]
            self.close_connection = len(whole) < len(data)
            for at in range(0, len(whole), hub.piece):
                hub.sent += len(whole[at : at + hub.piece])
                try:
                    self.wfile.write(whole[at : at + hub.piece])
                except OSError:  # whoever asked has left
                    self.close_connection = True
                    return
                time.sleep(hub.pause)

        def json(self, found: Any) -> None:
            self.plain(json.dumps(found).encode())

        def plain(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
                self.send_header("X-Error-Message", code)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


def proxy(seen: list[str]) -> type[BaseHTTPRequestHandler]:
    """Pass requests on to whoever they are for; `seen` gets each address."""

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: object) -> None:
            pass

        def do_GET(self) -> None:
            seen.append(self.path)
            to = urlsplit(self.path)
            connection = HTTPConnection(to.netloc)
            path = f"{to.path}?{to.query}" if to.query else to.path
            connection.request(self.command, path, headers={**self.headers, "Host": to.netloc})
            found = connection.getresponse()
            data = found.read()
            self.send_response(found.status)
            for name, value in found.getheaders():
                if name.lower() not in ("server", "date"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
            connection.close()

        do_HEAD = do_GET

    return Proxy


class Socks(BaseRequestHandler):
    """A SOCKS5 proxy without a password (RFC 1928), which notes the host and port of each connection."""

    seen: ClassVar[list[tuple[str, int]]]

    def handle(self) -> None:
        self._read(self._read(2)[1])
        self.request.sendall(b"\5\0")
        kind = self._read(4)[3]
        host = self._read(self._read(1)[0]).decode() if kind == 3 else ".".join(map(str, self._read(4)))
        port = int.from_bytes(self._read(2), "big")
        self.seen.append((host, port))
        with socket.create_connection((host, port)) as there:
            self.request.sendall(b"\5\0\0\1" + bytes(6))
            while ready := select.select([self.request, there], [], [], 30)[0]:
                for one in ready:
                    piece = one.recv(1 << 16)
                    if not piece:
                        return
                    (there if one is self.request else self.request).sendall(piece)

    def _read(self, size: int) -> bytes:
        found: bytes = self.request.recv(size, socket.MSG_WAITALL)
        return found


@contextmanager
def socks(seen: list[tuple[str, int]]) -> Iterator[str]:
    """Serve a SOCKS5 proxy on a port of loopback; gives its host and port."""
    server = ThreadingTCPServer(("127.0.0.1", 0), type("Noting", (Socks,), {"seen": seen}))
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Server(ThreadingHTTPServer):
    """Does not mind when whoever asked was killed, and waits for nobody."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(answers: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve on a port of loopback; gives its address."""
    server = Server(("127.0.0.1", 0), answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving_hub() -> Iterator[Hub]:
    """Serve a hub."""
    hub = Hub()
    with serving(handler(hub)) as hub.url:
        yield hub


def environment(hub: Hub, folder: Path) -> dict[str, str]:
    """Return the variables with which a process talks to `hub`, with a cache and no login of its own."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(folder / "hub cache"),
        "HF_HOME": str(folder / "hub home"),
        "HF_TOKEN_PATH": str(folder / "no token"),
    }


def openvino_files(weights: bytes = bytes(50)) -> dict[str, bytes]:
    """Return the files of a repository with a ready graph."""
    return {"openvino_model.xml": b"<net/>", "openvino_model.bin": weights, **files_beside()}


def safetensors_files() -> dict[str, bytes]:
    """Return the files of a repository as it is trained: one tensor of two numbers."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    data = len(header).to_bytes(8, "little") + header + b"\0\0\x80?" * 2
    return {"model.safetensors": data, **files_beside()}


def files_beside() -> dict[str, bytes]:
    """Return a tokenizer, a configuration and a chat template."""
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    config = {"model_type": "qwen3", "max_position_embeddings": 40960}
    words = {"eos_token": "</s>", "bos_token": "<s>", "chat_template": "plain"}
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(words).encode(),
    }
