"""A tool that fetches a page."""

from __future__ import annotations

import html.parser
import urllib.error
import urllib.parse
import urllib.request
from typing import Annotated

from localspec.agent.files import shortened
from localspec.agent.shell import printable
from localspec.tools import Tool, ToolFailed, tool

SECONDS = 20.0
MOST_BYTES = 2_000_000
SILENT = {"script", "style", "noscript", "template", "svg"}
BREAKS = {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "section", "article"}


def tools() -> list[Tool]:
    """Return the tools that use the network."""
    return [tool(fetch_url, access="fetch", preview=lambda url: f"GET {url}\n")]


def fetch_url(url: Annotated[str, "address that begins with http:// or https://"]) -> str:
    """Fetch a page; return its text."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ToolFailed(f"`{url}` is no http address")
    request = urllib.request.Request(url, headers={"User-Agent": "localspec"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            kind = reply.headers.get_content_type()
            content = reply.read(MOST_BYTES + 1)
            text = content[:MOST_BYTES].decode(reply.headers.get_content_charset() or "utf-8", "replace")
    except urllib.error.HTTPError as error:
        raise ToolFailed(f"`{url}` answers {error.code} {error.reason}") from None
    except (OSError, ValueError, LookupError) as error:
        raise ToolFailed(f"`{url}` cannot be fetched: {getattr(error, 'reason', error)}") from None
    if not (kind.startswith("text/") or kind.endswith(("json", "xml", "javascript"))):
        raise ToolFailed(f"`{url}` is no text but {kind}")
    more = f"\n(only the first {MOST_BYTES:,} bytes)" if len(content) > MOST_BYTES else ""
    return shortened(printable(_Words.of(text) if kind == "text/html" else text)) + more


class _Words(html.parser.HTMLParser):
    """The text of a page, without its scripts, a line a block."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._silent = 0

    @classmethod
    def of(cls, page: str) -> str:
        reader = cls()
        reader.feed(page)
        lines = (" ".join(line.split()) for line in "".join(reader._parts).splitlines())
        return "\n".join(filter(None, lines))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._silent += tag in SILENT
        self._parts += ["\n"] if tag in BREAKS else []

    def handle_endtag(self, tag: str) -> None:
        self._silent = max(0, self._silent - (tag in SILENT))
        self._parts += ["\n"] if tag in BREAKS else []

    def handle_data(self, data: str) -> None:
        self._parts += [] if self._silent else [data]
