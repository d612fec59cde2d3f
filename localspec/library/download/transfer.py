"""Requests to a hub with bounded answers: their bytes, their redirects, and the time of slow ones."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast
from urllib.parse import SplitResult, urljoin, urlsplit

from localspec.errors import NetworkError, printable
from localspec.library.download import cache
from localspec.library.progress import Progress

CHUNK_BYTES = 1 << 14  # small, because an incomplete chunk may be lost when the connection breaks
REDIRECTS = 10  # at most
SLOW_BYTES = 1000  # a second; a body that is slower
SLOW_SECONDS = 30.0  # over this time is slow, which is told once,
PATIENCE = 60.0  # and is given up when it stays slow for as many seconds

ANSWER_SECONDS = 60.0  # for the headers of an answer

Answer = TypeVar("Answer")

_MOVED = (301, 302, 303, 307, 308)
_ANOTHER = "Try again, or use another hub: `HF_ENDPOINT`"


class Pace:
    """Watches how fast bodies arrive, across all attempts for one of them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last = 0.0
        self._seconds, self._bytes = 0.0, 0  # of the present stretch
        self._slow = 0.0  # seconds since a body became slow
        self._told = False

    def begin(self) -> None:
        """Begin to wait for bytes: time between attempts does not count."""
        self._last = time.monotonic()

    def received(self, count: int) -> None:
        """Count `count` more bytes; raises NetworkError once a body was slow for longer than PATIENCE."""
        now = time.monotonic()
        self._seconds += now - self._last
        self._bytes += count
        self._last = now
        if self._seconds >= SLOW_SECONDS:
            self._judge(self._bytes / self._seconds)
            self._seconds, self._bytes = 0.0, 0

    def _judge(self, speed: float) -> None:
        if speed >= SLOW_BYTES:
            self._slow = 0.0
        elif not self._told:
            self._told = True
            self._progress.say(
                f"`{cache.host()}` sends {speed:,.0f} bytes a second; giving up if it stays below "
                f"{SLOW_BYTES:,} for another {PATIENCE:g} seconds"
            )
        else:
            self._slow += self._seconds
            if self._slow >= PATIENCE:
                raise NetworkError(
                    f"`{cache.host()}` sends {speed:,.0f} bytes a second, too few to go on",
                    "Try again later, the download resumes where it stopped; or use another hub",
                )


@contextmanager
def requested(url: str, start: int = 0) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """Request a URL from byte `start` on; gives the response, and its body as it arrives, never decoded.

    It uses the hub client's own session, proxies and token, which other hosts are not sent. Its HTTP library
    (requests before 1.0, then httpx) would read the whole body of a redirect and of an error, so redirects
    are followed here and those bodies are left unread. Raises the hub client's errors, and NetworkError for a
    compressed body or wrong redirects.
    """
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    headers: dict[str, str] = build_hf_headers() | {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    for _ in range(REDIRECTS + 1):
        with _sent(url, headers) as (response, chunks):
            if response.status_code not in _MOVED:
                _check(response)
                yield response, chunks
                return
            url, headers = _redirected(url, response.headers.get("Location") or "", headers)
    raise NetworkError(f"`{cache.host()}` redirects more than {REDIRECTS} times", _ANOTHER)


def answered(request: Callable[[], Answer]) -> Answer:
    """Call `request`, which returns once the headers of an answer have arrived; raises what it raises.

    Raises NetworkError if that takes ANSWER_SECONDS, or the time that a single read may take if that is
    longer: a server that sends a byte of its headers now and then is never too slow for a single read.
    """
    results: SimpleQueue[tuple[Answer | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            results.put((request(), None))
        except BaseException as error:
            results.put((None, error))

    seconds = max(ANSWER_SECONDS, cache.timeout())
    threading.Thread(target=run, daemon=True).start()
    try:
        answer, error = results.get(timeout=seconds)
    except Empty:
        raise NetworkError(f"`{cache.host()}` did not answer within {seconds:g} seconds", _ANOTHER) from None
    if error is not None:
        raise error
    return cast(Answer, answer)


def announced(response: Any) -> int | None:
    """Return the bytes that a response says its body has, None if it says no number."""
    length = response.headers.get("Content-Length") or ""
    return int(length) if length.isdecimal() and len(length) < 20 else None


def at_most(chunks: Iterable[bytes], limit: int, name: str, pace: Pace) -> Iterator[bytes]:
    """Yield the body of `name`, at most `limit` bytes; raises NetworkError for the chunk with one more."""
    left = limit
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            raise too_long(name, limit)
        pace.received(len(chunk))
        yield chunk


def too_long(name: str, limit: int) -> NetworkError:
    """Return the error of a body with more than `limit` bytes."""
    return NetworkError(f"`{cache.host()}` sends more than {limit:,} bytes for `{name}`", _ANOTHER)


@contextmanager
def _sent(url: str, headers: Mapping[str, str]) -> Iterator[tuple[Any, Iterator[bytes]]]:
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    session: Any = get_session()
    if callable(session.stream):
        sent = session.stream("GET", url, headers=headers, timeout=cache.timeout(), follow_redirects=False)
        response = answered(sent.__enter__)
        try:
            yield response, response.iter_raw()
        finally:
            response.close()
    else:
        with answered(lambda: _sent_by_requests(session, url, headers)) as response:
            yield response, _as_it_arrives(response.raw)


def _sent_by_requests(session: Any, url: str, headers: Mapping[str, str]) -> Any:
    """Send a request by the session's adapter: the session itself reads the body of any redirect."""
    from requests import Request

    request = session.prepare_request(Request("GET", url, headers=dict(headers)))
    settings = session.merge_environment_settings(request.url, {}, True, None, None)  # streamed
    return session.get_adapter(request.url).send(request, timeout=cache.timeout(), **settings)


def _as_it_arrives(raw: Any) -> Iterator[bytes]:
    """Yield the bytes of a urllib3 response; one that waited for whole chunks could not see a slow body."""
    while chunk := raw.read1(CHUNK_BYTES, decode_content=False):
        yield chunk


def _check(response: Any) -> None:
    """Raise the hub client's error for a status, and NetworkError for a compressed body."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    if response.status_code >= 400:
        response.close()
        response._content = b""  # in both HTTP libraries; else the hub client reads all of it for its message
    hf_raise_for_status(response)
    encoding = (response.headers.get("Content-Encoding") or "identity").strip().lower()
    if encoding != "identity":
        raise NetworkError(
            f"`{cache.host()}` sends a compressed body (`{printable(encoding)}`), which was not requested",
            _ANOTHER,
        )


def _redirected(url: str, location: str, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the address and the headers of the next request: another host gets no token."""
    old = urlsplit(url)
    try:
        target = urljoin(url, location)
        new = urlsplit(target)
        usable = bool(new.hostname) and new.port != 0 and new.scheme in {"https", old.scheme}
    except ValueError:  # a port that is no number, half an IPv6 address
        usable = False
    if not usable or not re.fullmatch(r"[!-~]+", location):
        raise NetworkError(
            f"`{cache.host()}` redirects to `{printable(location)}`, which cannot be followed", _ANOTHER
        )
    if _same_host(old, new):
        return target, headers
    return target, {name: value for name, value in headers.items() if name.lower() != "authorization"}


def _same_host(old: SplitResult, new: SplitResult) -> bool:
    """Return whether a redirect stays on its host, or goes on to the same host by TLS."""
    if old.hostname != new.hostname:
        return False
    secured = (old.scheme, new.scheme) == ("http", "https") and {old.port, new.port} <= {None, 80, 443}
    return (old.scheme, old.port) == (new.scheme, new.port) or secured
