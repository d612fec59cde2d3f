"""A tool that fetches a web page."""

from __future__ import annotations

import html.parser
import http.client
import threading
import urllib.error
import urllib.parse
import urllib.request
from time import monotonic
from typing import IO, Annotated

from localspec.agent.tools.files import shortened
from localspec.output.visible import visible
from localspec.tools import Tool, ToolFailed, tool

TIMEOUT = 20.0  # seconds
MAX_BYTES = 2_000_000
SAFE = "/%:=&?~#+!$,;'@()*[]"  # have a meaning in a URL, or are escaped already
SILENT = {"script", "style", "noscript", "template", "svg"}
BREAKS = {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section", "article"}


def tools() -> list[Tool]:
    """Return the tools that use the network."""
    return [tool(fetch_url, access="fetch", preview=lambda url: f"GET {url}\n")]


def fetch_url(url: Annotated[str, "address that begins with http:// or https://"]) -> str:
    """Fetch a page; return its text."""
    results: list[str | Exception] = []

    def work() -> None:
        try:
            results.append(_fetch_text(url, monotonic() + TIMEOUT))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=work, daemon=True)  # socket timeouts do not limit slow headers
    thread.start()
    thread.join(TIMEOUT)
    if not results:
        raise ToolFailed(f"`{url}` did not answer in {TIMEOUT:g} seconds")
    if isinstance(results[0], Exception):
        raise results[0]
    return results[0]


def _fetch_text(url: str, end: float) -> str:
    try:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ToolFailed(f"`{url}` is not an http address")
        request = urllib.request.Request(_escaped(url), headers={"User-Agent": "localspec"})
        with urllib.request.build_opener(_SameHost).open(request, timeout=TIMEOUT) as reply:
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
