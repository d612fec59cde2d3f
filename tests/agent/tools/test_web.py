"""fetch_url, with a real server on loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import loopback
import pytest

from localspec.agent.permission import NotAllowed, Permission, Reply
from localspec.agent.tools import addresses, web
from localspec.agent.tools.text_files import MAX_OUTPUT
from localspec.tools import Tool, ToolFailed

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


def fetch(url: str) -> str:
    """Fetch a page as the agent does for a user who allows everything."""
    found = web.Web()
    list(found.permissions(url))
    return found.fetch_url(url)


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
    assert fetch(f"{site}/page") == "A title\nHead\nOne bold\nword & more\na\nb\nend"
    assert fetch(f"{site}/near") == fetch(f"{site}/page#part")
    assert fetch(f"{site}/empty") == "(the page has no text)"


def test_text_is_returned_unchanged(site: str) -> None:
    assert fetch(f"{site}/latin") == "café"
    assert fetch(f"{site}/json") == '{"a": 1}'
    assert fetch(f"{site}/escape") == "\ufffd]0;title\ufffd"
    assert fetch(f"{site}/ä?q=ö") == "umlauts"


def test_a_huge_page_is_shortened(site: str) -> None:
    told = fetch(f"{site}/huge")
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
        fetch(f"{site}{path}")


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
        "http://user@127.0.0.1/",
        "http://a\\@127.0.0.1/",
    ]
    + ["http://localhost\n/", "http://nothing.invalid/", "http://127.0.0.1:1/", "http://\ud800/"],
)
def test_an_unreachable_address(url: str) -> None:
    with pytest.raises(ToolFailed):
        fetch(url)


def test_a_slow_server_times_out(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIMEOUT", 0.5)
    with pytest.raises(ToolFailed, match=r"0\.5 seconds"):
        fetch(f"{site}/slow")


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "TIMEOUT", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ToolFailed, match="0.5 seconds|timed out"),
    ):
        fetch(f"http://127.0.0.1:{silent.getsockname()[1]}/")


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
            fetch(f"http://127.0.0.1:{other.getsockname()[1]}/")
        thread.join()


def asked(url: str) -> list[str]:
    """Return the kinds of permission that a call needs."""
    return [access for access, _ in web.Web().permissions(url)]


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "a.localhost", "2130706433", "0x7f.1", "0177.0.0.1", "0", "[::1]"]
    + ["[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "10.0.0.1", "192.168.1.1", "[fc00::1]"]
    + ["169.254.169.254", "169.254.1.1", "[fe80::1]", "100.64.0.1", "224.0.0.1", "0xa9fea9fe"],
)
def test_addresses_of_ones_own_networks_are_asked_about_apart(host: str) -> None:
    assert asked(f"http://{host}:8000/x") == ["local"]


def test_public_addresses() -> None:
    assert asked("http://1.1.1.1/") == ["fetch"]
    assert asked("https://[2606:4700:4700::1111]/") == ["fetch"]


def names(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let names mean the `answers`, one after the other; return the names that were looked up."""
    looked_up: list[str] = []
    real, left = socket.getaddrinfo, list(answers)

    def resolve(host: str, *rest: object, **options: object) -> object:
        if not host.endswith(".example"):
            return real(host, *rest, **options)  # type: ignore[arg-type]
        if options.get("flags"):
            raise socket.gaierror
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in left.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return looked_up


def test_a_name_is_looked_up_once_the_user_has_allowed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name itself could carry text out."""
    looked_up = names(monkeypatch, ["10.1.2.3", "1.1.1.1"])
    asking = web.Web().permissions("http://secret.example/")
    assert next(asking) == ("fetch", "GET http://secret.example/\n")
    assert looked_up == []
    access, preview = next(asking)
    assert (access, looked_up) == ("local", ["secret.example"])
    assert preview == "GET http://secret.example/\nsecret.example is 10.1.2.3: a private network\n"


def test_a_name_cannot_change_its_address_after_the_question(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of names that first tells a public address and then this machine's."""
    monkeypatch.setattr(web, "TIMEOUT", 0.5)
    looked_up = names(monkeypatch, ["192.0.2.1"], ["127.0.0.1"])
    found, url = web.Web(), f"http://page.example:{site.rpartition(':')[2]}/page"
    monkeypatch.setattr(addresses, "network", lambda address: None)  # 192.0.2.1 is for tests
    assert [access for access, _ in found.permissions(url)] == ["fetch"]
    with pytest.raises(ToolFailed, match="cannot be fetched|did not answer"):
        found.fetch_url(url)
    assert looked_up == ["page.example"]


def test_the_connection_goes_to_the_address_that_was_found(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(monkeypatch, ["127.0.0.1"])
    assert fetch(f"http://page.example:{site.rpartition(':')[2]}/near").startswith("A title")


def test_nothing_is_fetched_without_a_permission(site: str) -> None:
    found = web.Web()
    with pytest.raises(ToolFailed, match="Nobody has allowed"):
        found.fetch_url(f"{site}/page")
    next(found.permissions(f"{site}/page"))  # asked, and refused
    with pytest.raises(ToolFailed, match="Nobody has allowed"):
        found.fetch_url(f"{site}/page")
    list(found.permissions(f"{site}/page"))
    found.fetch_url(f"{site}/page")
    with pytest.raises(ToolFailed, match="Nobody has allowed"):
        found.fetch_url(f"{site}/page")


def test_an_always_for_the_public_network_covers_no_other() -> None:
    shown: list[tuple[str, str]] = []

    def ask(asked: Tool, preview: str) -> Reply:
        shown.append((asked.access, preview))
        return "always" if asked.access == "fetch" else "no"

    permission, page = Permission(ask=ask), web.tools()[0]
    for _ in range(2):
        permission.check(page, {"url": "http://1.1.1.1/"})
        with pytest.raises(NotAllowed):
            permission.check(page, {"url": "http://169.254.169.254/latest"})
    assert [access for access, _ in shown] == ["fetch", "local", "local"]
    assert "169.254.169.254 is 169.254.169.254: the service that tells" in shown[1][1]
    with pytest.raises(NotAllowed, match="no terminal"):
        Permission(["read", "fetch"]).check(page, {"url": "http://127.0.0.1/"})
    Permission(["read", "fetch", "local"]).check(page, {"url": "http://127.0.0.1/"})


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
def test_the_proxy_of_the_user_fetches_or_nobody_does(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    seen: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"through the proxy")

        def log_message(self, *words: object) -> None:
            pass

    with loopback.serving(Proxy) as address:
        monkeypatch.setenv(variable, address)
        assert fetch("http://no-such-host.example/a") == "through the proxy"
    assert seen == ["http://no-such-host.example/a"]
    monkeypatch.setenv(variable, "socks5://127.0.0.1:9")
    with pytest.raises(ToolFailed, match="of the kind `socks5`, cannot fetch pages"):
        fetch("http://no-such-host.example/a")
