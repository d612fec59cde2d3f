"""A hub on loopback, a library in a temporary folder, and a converter that only pretends."""

from __future__ import annotations

import json
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from localspec.library import Library

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Said:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []
        self.bytes = 0

    def step(self, title: str, total: int | None = None) -> None:
        self.steps.append(title)

    def advance(self, count: int) -> None:
        self.bytes += count

    def say(self, line: str) -> None:
        self.lines.append(line)


@dataclass
class Hub:
    """What the hub on loopback has and what it was asked."""

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cut_after: int | None = None  # bytes of a file after which the line breaks
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range

    def downloads(self) -> list[tuple[str, str | None]]:
        return [(path, area) for method, path, area in self.asked if method == "GET" and "/resolve/" in path]


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
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
                self.about(found[1])
            elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+", path):
                self.tree(found[1])
            elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self.file(found[1], found[2], body)
            else:
                self.refuse(404, "EntryNotFound")

        def about(self, name: str) -> None:
            files = hub.repositories.get(name)
            if files is None:
                self.refuse(401, "RepoNotFound")  # the real hub says 401 to strangers
                return
            siblings = [{"rfilename": file, "size": len(data)} for file, data in files.items()]
            self.json({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})

        def tree(self, name: str) -> None:
            files = hub.repositories[name]
            self.json(
                [
                    {"type": "file", "path": file, "size": len(data), "oid": f"{len(data):040x}"}
                    for file, data in files.items()
                ]
            )

        def file(self, name: str, file: str, body: bool) -> None:
            if name in hub.gated:
                self.refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
                return
            data = hub.repositories.get(name, {}).get(file)
            if data is None:
                self.refuse(404, "EntryNotFound")
                return
            start = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{len(data):040x}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            if body:
                self.wfile.write(data[start:][: hub.cut_after])
                self.close_connection = hub.cut_after is not None

        def json(self, found: Any) -> None:
            data = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that huggingface_hub talks to, with a cache and no token of its own."""
    found = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(found))
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", found.url)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "löcal spec 数")


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the converter by one that writes two small files; the list grows by a line at each call."""
    calls: list[str] = []

    def import_weights(source: Any, into: Path, progress: Any) -> dict[str, str]:
        calls.append(source.architecture)
        (into / "openvino_model.xml").write_text("<net/>")
        (into / "openvino_model.bin").write_bytes(bytes(1000))
        return {"precision": "int4"}

    module = types.ModuleType("localspec.formats.ir")
    module.import_weights = import_weights  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "localspec.formats.ir", module)
    return calls


Maker = Callable[[Path], Path]


@pytest.fixture(scope="session")
def make_gguf() -> Maker:
    """Write a GGUF file with a vocabulary of bytes, a chat template and one tensor."""
    return write_gguf


def write_gguf(path: Path, seed: int = 0) -> Path:
    letters = [*"abcdefgh", "ab", "<|endoftext|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(letters)
    writer.add_token_types([1] * 9 + [3] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(9)
    writer.add_eos_token_id(10)
    writer.add_add_bos_token(True)
    writer.add_chat_template(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_tensor("token_embd.weight", np.full((11, 64), seed, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
