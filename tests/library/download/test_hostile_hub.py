"""A hub that lies about sizes, compresses, redirects without end, dribbles, or answers nonsense."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import loopback
import pytest

from localspec.errors import LocalspecError, NetworkError
from localspec.library.download import hub as hub_module
from localspec.library.download import transfer
from localspec.library.sources import Source

DATA = bytes(88)
Answer = Callable[[BaseHTTPRequestHandler], None]


def fetch(text: str, said: Any) -> Any:
    return hub_module.fetch(Source.parse(text), said)


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def answer(body: bytes, **headers: str) -> Answer:
    """Return an answer that sends `body` once and says what `headers` say."""

    def send(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)
        request.close_connection = True

    return send


def endless(request: BaseHTTPRequestHandler) -> None:
    """Answer with chunks until nobody listens, 500 MB at most."""
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    request.close_connection = True
    try:
        for _ in range(500):
            request.wfile.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
    except OSError:
        return


def dribble(request: BaseHTTPRequestHandler) -> None:
    """Answer with a byte at a time, for ten seconds at most."""
    request.send_response(200)
    request.send_header("Content-Length", str(len(DATA)))
    request.end_headers()
    try:
        for _ in range(len(DATA)):
            request.wfile.write(b"\0")
            time.sleep(0.1)
    except OSError:
        return


def slow_headers(request: BaseHTTPRequestHandler) -> None:
    """Answer with a byte of the headers at a time, for ten seconds at most."""
    request.close_connection = True
    try:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        for _ in range(100):
            request.wfile.write(b"x")
            time.sleep(0.1)
    except OSError:
        return


def test_a_file_ends_at_its_announced_size(hub: Any, said: Any, tmp_path: Path) -> None:
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.instead["/resolve/"] = endless
    with pytest.raises(NetworkError, match="sends more than 88 bytes for `m.gguf`") as caught:
        fetch("hf:o/m", said)
    assert "HF_ENDPOINT" in str(caught.value.hint)
    assert bytes_in(tmp_path) <= 88
    assert said.lines == []  # no retry


def test_a_larger_content_length_is_refused_before_the_first_byte(
    hub: Any, said: Any, tmp_path: Path
) -> None:
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.instead["/resolve/"] = answer(b"", Content_Length="1500000000")
    with pytest.raises(NetworkError, match="sends more than 88 bytes for `m.gguf`"):
        fetch("hf:o/m", said)
    assert bytes_in(tmp_path) == 0


@pytest.mark.parametrize("where", ["/resolve/", "/api/"])
def test_a_compressed_body_is_refused(hub: Any, said: Any, tmp_path: Path, where: str) -> None:
    hub.repositories["o/m"] = {"m.gguf": DATA}
    packed = gzip.compress(bytes(10_000_000))
    hub.instead[where] = answer(packed, Content_Encoding="gzip", Content_Length=str(len(packed)))
    with pytest.raises(NetworkError, match=r"sends a compressed body \(`gzip`\)"):
        fetch("hf:o/m", said)
    assert bytes_in(tmp_path) == 0


def test_a_listing_has_an_end(hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "LISTING_BYTES", 3_000_000)
    hub.instead["/api/"] = endless
    with pytest.raises(NetworkError, match="sends more than 3,000,000 bytes for `the files of o/m`"):
        fetch("hf:o/m", said)


@pytest.mark.parametrize("status", [404, 302, 500])
def test_the_body_of_an_error_or_a_redirect_is_not_read(
    hub: Any, said: Any, waited: list[float], status: int
) -> None:
    sent: list[int] = []

    def large(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Location", request.path)
        request.send_header("Content-Length", str(1 << 40))
        request.end_headers()
        request.close_connection = True
        try:
            for _ in range(50):
                request.wfile.write(bytes(1 << 20))
                sent.append(1 << 20)
        except OSError:
            return

    hub.instead["/api/"] = large
    with pytest.raises(LocalspecError):
        fetch("hf:o/m", said)
    assert sum(sent) < len(hub.asked) * (20 << 20)  # no more than its sockets hold


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://x/y", "http://[::1", "http://a:x/", "http://a b/", "\x01", ""],
)
def test_a_redirect_to_nowhere_is_an_error(hub: Any, said: Any, location: str) -> None:
    hub.troubles += [loopback.Trouble(302, {"Location": location} if location else {})]
    with pytest.raises(NetworkError, match="which cannot be followed|Cannot connect"):
        fetch("hf:o/m", said)


def test_redirects_have_an_end(hub: Any, said: Any) -> None:
    hub.troubles += [loopback.Trouble(307, {"Location": f"/api/models/o/n{number}"}) for number in range(40)]
    with pytest.raises(NetworkError, match="redirects more than 10 times"):
        fetch("hf:o/m", said)
    assert len(hub.asked) == 11


def test_a_renamed_repository_is_followed(hub: Any, said: Any) -> None:
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.troubles.append(loopback.Trouble(307, {"Location": "/api/models/o/m?blobs=true"}))
    assert fetch("hf:o/m", said).path.read_bytes() == DATA


def test_a_revision_is_quoted(hub: Any, said: Any) -> None:
    hub.repositories["o/m"] = {"m.gguf": DATA}
    fetch("hf:o/m@refs/pr/1", said)
    assert hub.asked[0][1] == "/api/models/o/m/revision/refs%2Fpr%2F1"


@pytest.mark.parametrize("where", ["/resolve/", "/api/"])
def test_a_slow_body_is_told_once_and_then_given_up(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(transfer, "SLOW_SECONDS", 0.2)
    monkeypatch.setattr(transfer, "PATIENCE", 0.4)
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.instead[where] = dribble
    with pytest.raises(NetworkError, match="bytes a second, too few to go on") as caught:
        fetch("hf:o/m", said)
    assert "resumes where it stopped" in str(caught.value.hint)
    assert len(said.lines) == 1
    assert "giving up if it stays below 1,000 for another 0.4 seconds" in said.lines[0]


@pytest.mark.parametrize(("where", "silent"), [("/api/", False), ("/resolve/", False), ("/resolve/", True)])
def test_headers_that_arrive_byte_by_byte_are_given_up(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, where: str, silent: bool
) -> None:
    monkeypatch.setattr(transfer, "ANSWER_SECONDS", 1.5)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.silent = silent  # about sizes, so that the first request for the file is one for its headers
    hub.instead[where] = slow_headers
    with pytest.raises(NetworkError, match=r"did not answer within 1\.5 seconds"):
        fetch("hf:o/m", said)


def test_a_line_that_breaks_after_each_byte_is_given_up(hub: Any, said: Any, waited: list[float]) -> None:
    hub.repositories["o/m"] = {"m.gguf": bytes(5000)}
    hub.cut_after = 1
    with pytest.raises(NetworkError, match="broke for `m.gguf` 5 times"):
        fetch("hf:o/m", said)
    assert len(waited) == 4


ENTRY = {"rfilename": "m.gguf", "size": 88, "blobId": "ab" * 20}
NONSENSE: dict[str, bytes] = {
    "nothing": b"",
    "html": b"<html>not found</html>",
    "half": b'{"sha": "ab", "sibl',
    "no object": b"[]",
    "null": b"null",
    "number": b"17",
    "nesting": b'{"sha": "ab", "siblings": ' + b"[" * 1_000_000,
    "unknown nesting": b'{"sha": "ab", "other": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    "no commit": b'{"siblings": []}',
    "commit of another type": b'{"sha": 7, "siblings": []}',
    "no list": b'{"sha": "ab", "siblings": 7}',
    "names of another type": json.dumps({"sha": "ab", "siblings": [ENTRY | {"rfilename": 7}]}).encode(),
    "a text as size": json.dumps({"sha": "ab", "siblings": [ENTRY | {"size": "88"}]}).encode(),
    "a fraction as size": json.dumps({"sha": "ab", "siblings": [ENTRY | {"size": 8.5}]}).encode(),
    "a negative size": json.dumps({"sha": "ab", "siblings": [ENTRY | {"size": -1}]}).encode(),
    "an absurd size": json.dumps({"sha": "ab", "siblings": [ENTRY | {"size": 1 << 62}]}).encode(),
    "a size beyond 64 bits": json.dumps({"sha": "ab", "siblings": [ENTRY | {"size": 1 << 90}]}).encode(),
    "not a number": b'{"sha": "ab", "siblings": [{"rfilename": "a", "size": NaN}]}',
    "a name twice": json.dumps({"sha": "ab", "siblings": [ENTRY, ENTRY]}).encode(),
    "half a character": b'{"sha": "ab\\ud800", "siblings": []}',
    "no UTF-8": b'{"sha": "\xff\xfe", "siblings": []}',
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_a_listing_that_is_none_is_one_error(hub: Any, said: Any, kind: str) -> None:
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.listings["o/m"] = NONSENSE[kind]
    with pytest.raises(NetworkError, match="lists the files of `o/m` wrongly") as caught:
        fetch("hf:o/m", said)
    assert caught.value.hint
    assert caught.value.message.isprintable()
    assert len(hub.asked) == 1
