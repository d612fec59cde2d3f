"""fetch_url, with a real server on loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from localspec.agent.tools import web
from localspec.agent.tools.files import MAX_OUTPUT
from localspec.tools import ToolFailed

PAGE = """<!doctype html><html><head><title>A title</title><style>p {color: red}</style>
<script>document.write("<p>no</p>")</script></head><body><h1>Head</h1><p>One <b>bold</b>
word &amp; more</p><ul><li>a<li>b</ul><svg><text>no</text></svg><br/>end</body>"""


class Pages(BaseHTTPRequestHandler):
    """Pages of every kind."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        host = self.headers["Host"]
        kinds: dict[str, tuple[int, str, bytes, str]] = {
            "/page": (200, "text/html; charset=utf-8", PAGE.encode(), ""),
            "/latin": (200, "text/plain; charset=latin-1", b"caf\xe9", ""),
            "/odd": (200, "text/plain; charset=no-such", b"x", ""),
            "/json": (200, "application/ld+json", b'{"a": 1}', ""),
            "/image": (200, "image/png", b"\x89PNG", ""),
            "/escape": (200, "text/plain", b"\x1b]0;title\x07", ""),
            "/huge": (200, "text/plain", b"x" * (web.MAX_BYTES + 5), ""),
            "/empty": (200, "text/html", b"<script>1</script>", ""),
            "/near": (302, "text/plain", b"", "/page"),
            "/far": (302, "text/plain", b"", f"http://localhost:{host.rpartition(':')[2]}/page"),
            "/file": (302, "text/plain", b"", "file:///etc/hostname"),
            "/round": (302, "text/plain", b"", "/round"),
            "/%C3%A4?q=%C3%B6": (200, "text/plain", b"umlauts", ""),
        }
        if self.path == "/slow":
            self.slowly()
            return
        code, kind, content, place = kinds.get(self.path, (404, "text/html", b"none", ""))
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if place:
            self.send_header("Location", place)
        self.end_headers()
        self.wfile.write(content)

    def slowly(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        try:
            for _ in range(100):
                self.wfile.write(b".")
                time.sleep(0.1)
        except OSError:
            pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_becomes_text(site: str) -> None:
    assert web.fetch_url(f"{site}/page") == "A title\nHead\nOne bold\nword & more\na\nb\nend"
    assert web.fetch_url(f"{site}/near") == web.fetch_url(f"{site}/page#part")
    assert web.fetch_url(f"{site}/empty") == "(the page has no text)"


def test_text_is_returned_unchanged(site: str) -> None:
    assert web.fetch_url(f"{site}/latin") == "café"
    assert web.fetch_url(f"{site}/json") == '{"a": 1}'
    assert web.fetch_url(f"{site}/escape") == "\ufffd]0;title\ufffd"
    assert web.fetch_url(f"{site}/ä?q=ö") == "umlauts"


def test_a_huge_page_is_shortened(site: str) -> None:
    told = web.fetch_url(f"{site}/huge")
    assert told.endswith("(only the first 2,000,000 bytes)")
    assert len(told) < MAX_OUTPUT + 200


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/none", "answers 404 Not Found"),
        ("/image", "is not text but image/png"),
        ("/odd", "cannot be fetched: unknown encoding"),
        ("/round", "answers 302"),
        ("/far", "is moved to `http://localhost:"),
        ("/file", "answers 302 Found.*is not allowed"),
    ],
)
def test_a_binary_file_is_an_error(site: str, path: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=said):
        web.fetch_url(f"{site}{path}")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname",
        "ftp://localhost/",
        "localhost",
        "",
        "http://[",
        "http://",
        "http://a b/",
        "http://x:y/",
    ]
    + ["http://localhost\n/", "http://nothing.invalid/", "http://127.0.0.1:1/", "http://\ud800/"],
)
def test_an_unreachable_address(url: str) -> None:
    with pytest.raises(ToolFailed):
        web.fetch_url(url)


def test_a_slow_server_times_out(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIMEOUT", 0.5)
    with pytest.raises(ToolFailed, match=r"0\.5 seconds"):
        web.fetch_url(f"{site}/slow")


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIMEOUT", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ToolFailed, match="0.5 seconds|timed out"),
    ):
        web.fetch_url(f"http://127.0.0.1:{silent.getsockname()[1]}/")


def test_a_server_of_another_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            found, _ = other.accept()
            with found:
                found.recv(4096)
                found.sendall(b"SSH-2.0-what\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ToolFailed, match="cannot be fetched"):
            web.fetch_url(f"http://127.0.0.1:{other.getsockname()[1]}/")
        thread.join()
