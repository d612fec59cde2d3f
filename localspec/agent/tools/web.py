"""A tool that fetches a web page."""

from __future__ import annotations

import html.parser
import http.client
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import IO, Annotated, Any, TypeVar

from localspec.agent.tools import addresses
from localspec.agent.tools.text_files import shortened
from localspec.output.visible import visible
from localspec.tools import Access, Tool, ToolFailed, tool

TIMEOUT = 20.0  # seconds
MAX_BYTES = 2_000_000
SAFE = "/%:=&?~#+!$,;'@()*[]"  # have a meaning in a URL, or are escaped already
SILENT = {"script", "style", "noscript", "template", "svg"}
BREAKS = {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section", "article"}

Result = TypeVar("Result")

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d+)?", re.ASCII)


def tools() -> list[Tool]:
    """Return the tools that use the network."""
    web = Web()
    return [replace(tool(web.fetch_url, access="fetch"), permissions=web.permissions)]


class Web:
    """Fetches pages from the addresses that the user has allowed.

    A host is looked up once, after the user has allowed the request: its name alone could carry text out.
    The connection goes to the address that was found, whatever the name means a moment later.
    """

    def __init__(self) -> None:
        self._allowed: dict[str, list[str]] = {}  # addresses of hosts, for the next call

    def permissions(self, url: str) -> Iterator[tuple[Access, str]]:
        """Yield the permissions that a call needs; raises ToolFailed for a host that is not known."""
        host = _host(url)
        found = addresses.numeric(host)
        if not any(map(addresses.network, found)):
            yield "fetch", f"GET {url}\n"
        if not (found or _proxy(url, host)):
            found = _within_time(url, lambda: addresses.resolve(host))
        places = {address: place for address in found if (place := addresses.network(address))}
        if places:
            where = "".join(f"{host} is {address}: {place}\n" for address, place in places.items())
            yield "local", f"GET {url}\n{where}"
        self._allowed[host] = [] if _proxy(url, host) and not places else found

    def fetch_url(self, url: Annotated[str, "address that begins with http:// or https://"]) -> str:
        """Fetch a page; return its text."""
        host = _host(url)
        if host not in self._allowed:
            raise ToolFailed(f"Nobody has allowed `{host}`")
        found, end = self._allowed.pop(host), monotonic() + TIMEOUT
        return _within_time(url, lambda: _fetch_text(url, found, end))


def _within_time(url: str, work: Callable[[], Result]) -> Result:
    """Return the result of `work`; raises ToolFailed after TIMEOUT, and what `work` raises."""
    results: list[Result | Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)  # socket timeouts do not limit slow headers
    thread.start()
    thread.join(TIMEOUT)
    if not results:
        raise ToolFailed(f"`{url}` did not answer in {TIMEOUT:g} seconds")
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def _host(url: str) -> str:
    """Return the host of an http address in ASCII; raises ToolFailed for any other address."""
    try:
        parts = urllib.parse.urlsplit(_escaped(url))
        host = parts.hostname or ""
        port = parts.port
    except ValueError as error:
        raise ToolFailed(f"`{url}` is not an address: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ToolFailed(f"`{url}` is not an http address")
    if not host or port == 0 or not _HOST.fullmatch(parts.netloc):
        raise ToolFailed(f"`{url}` has no host, or a user's name before it")
    return host


def _proxy(url: str, host: str) -> str | None:
    """Return the proxy that fetches the page, and looks the host up itself; None without one.

    Raises ToolFailed for one that is not an HTTP proxy: going around it would be against the user's will.
    """
    proxies = urllib.request.getproxies()
    proxy = proxies.get(urllib.parse.urlsplit(url).scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    kind = urllib.parse.urlsplit(proxy).scheme if "://" in proxy else "http"
    if kind not in ("http", "https"):
        raise ToolFailed(f"The proxy that the user has set, of the kind `{kind}`, cannot fetch pages")
    return proxy


def _opener(url: str, found: Sequence[str]) -> urllib.request.OpenerDirector:
    """Return what opens a page at the addresses `found`, or through the proxy if there are none."""

    def connect(place: tuple[str, int], *options: Any) -> socket.socket:
        errors: list[OSError] = []
        for address in found:
            try:
                return socket.create_connection((address, place[1]), *options)
            except OSError as error:
                errors.append(error)
        raise errors[0]

    def made(kind: type[http.client.HTTPConnection]) -> Callable[..., http.client.HTTPConnection]:
        def make(*arguments: Any, **options: Any) -> http.client.HTTPConnection:
            connection = kind(*arguments, **options)
            connection._create_connection = connect  # type: ignore[attr-defined]
            return connection

        return make

    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(made(http.client.HTTPConnection), req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(made(http.client.HTTPSConnection), req)

    if not found:
        parts = urllib.parse.urlsplit(url)
        through = {parts.scheme: _proxy(url, parts.hostname or "") or ""}
        return urllib.request.build_opener(urllib.request.ProxyHandler(through), _SameHost)
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), Http, Https, _SameHost)


def _fetch_text(url: str, found: Sequence[str], end: float) -> str:
    try:
        request = urllib.request.Request(_escaped(url), headers={"User-Agent": "localspec"})
        with _opener(url, found).open(request, timeout=TIMEOUT) as reply:
            kind = reply.headers.get_content_type()
            content = _read(reply, end)
            text = content[:MAX_BYTES].decode(reply.headers.get_content_charset() or "utf-8", "replace")
    except urllib.error.HTTPError as error:
        error.close()
        raise ToolFailed(f"`{url}` answers {error.code} {error.reason}") from None
    except (OSError, ValueError, LookupError, http.client.HTTPException) as error:
        raise ToolFailed(f"`{url}` cannot be fetched: {getattr(error, 'reason', error)}") from None
    if not (kind.startswith("text/") or kind.endswith(("json", "xml", "javascript"))):
        raise ToolFailed(f"`{url}` is not text but {kind}")
    more = f"\n(only the first {MAX_BYTES:,} bytes)" if len(content) > MAX_BYTES else ""
    content_text = shortened(visible(_PageText.of(text) if kind == "text/html" else text)) + more
    return content_text.strip() or "(the page has no text)"


def _read(reply: http.client.HTTPResponse, end: float) -> bytes:
    content = b""
    while len(content) <= MAX_BYTES and (part := reply.read1(65536)):
        content += part
        if monotonic() > end:
            raise TimeoutError(f"it took more than {TIMEOUT:g} seconds")
    return content


def _escaped(url: str) -> str:
    """Return a URL with its non-ASCII characters escaped."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.encode("idna").decode() if not parts.netloc.isascii() else parts.netloc
    rest = (urllib.parse.quote(part, safe=SAFE) for part in (parts.path, parts.query))
    return urllib.parse.urlunsplit((parts.scheme, host, *rest, ""))


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the same host only: the user has allowed no other."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = (urllib.parse.urlsplit(url) for url in (req.full_url, newurl))
        if old.netloc != new.netloc or new.scheme not in ("http", "https"):
            fp.close()
            raise ToolFailed(f"`{req.full_url}` is moved to `{newurl}`", "Fetch that")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _PageText(html.parser.HTMLParser):
    """The text of a page without its scripts, one line for each block."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._silent = 0

    @classmethod
    def of(cls, page: str) -> str:
        parser = cls()
        parser.feed(page)
        lines = (" ".join(line.split()) for line in "".join(parser._parts).splitlines())
        return "\n".join(filter(None, lines))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._silent += tag in SILENT
        self._parts += ["\n"] if tag in BREAKS else []

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(0, self._silent - (tag in SILENT))
        self._parts += ["\n"] if tag in BREAKS else []

    def handle_data(self, data: str) -> None:
        self._parts += [] if self._silent else [data]
