"""The retry policy for requests to a hub: rate limits, server errors and broken connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import sleep
from typing import Any, TypeVar

from localspec.errors import NetworkError
from localspec.library.download import cache
from localspec.library.progress import Progress

Response = TypeVar("Response")

RETRIES = 4  # after the first attempt
DELAY = 1.0  # seconds before the first retry, doubled for each further one
ENOUGH = 1 << 16  # bytes that show that a download goes on
MAX_DELAY = 60.0  # seconds; a longer Retry-After is an error
RATE_LIMITED = 429
SERVER_ERRORS = (500, 502, 503, 504)

# The exceptions of a failed connection, by name: huggingface_hub has changed its HTTP library.
_NETWORK = {
    "ConnectionError",
    "TimeoutError",
    "SSLError",
    "HTTPError",
    "TransportError",
    "RequestException",
}


class RetryPolicy:
    """Counts the retries of one download, across all its files and sources."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._left = RETRIES
        self._received = 0  # bytes since all retries were allowed

    def received(self, count: int) -> None:
        """Count the bytes of an attempt that failed: after ENOUGH of them all retries are allowed again.

        A server that breaks off after every byte would else be asked without end.
        """
        self._received += count
        if self._received >= ENOUGH:
            self._left, self._received = RETRIES, 0

    def call(self, what: str, request: Callable[[], Response]) -> Response:
        """Call `request`, with retries while the hub is rate limited or has server errors.

        Raises other errors of `request`, and NetworkError when the retries are used up.
        """
        while True:
            try:
                return request()
            except Exception as error:
                if status_of(error) is None:
                    raise
                self.wait_or_raise(error, what)

    def wait_or_raise(self, error: Exception, what: str) -> None:
        """Wait until `what` may be requested again.

        Raises NetworkError if the retries are used up or the wait is too long, and `error` itself if a retry
        cannot help.
        """
        status = status_of(error)
        if status not in (None, RATE_LIMITED, *SERVER_ERRORS) or (status is None and not is_network(error)):
            raise error
        backoff = DELAY * 2 ** (RETRIES - self._left)
        delay = _retry_after(error, backoff) if status else min(backoff, DELAY)
        if self._left == 0 or delay > MAX_DELAY:
            raise _gave_up(error, what, status, delay) from error
        left = f"{self._left} {'retries' if self._left > 1 else 'retry'} left"
        self._progress.say(f"{_reason(error, status)}; retrying in {delay:.0f} s, {left}")
        self._left -= 1
        sleep(delay)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error, None if it has none."""
    status = getattr(_response(error), "status_code", None)
    return status if isinstance(status, int) else None


def is_network(error: BaseException) -> bool:
    """Return whether a connection failed."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _NETWORK)


def is_timeout(error: BaseException) -> bool:
    """Return whether a connection timed out."""
    return any(
        "Timeout" in kind.__name__ or "timed out" in str(each)
        for each in causes(error)
        for kind in type(each).__mro__
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _reason(error: Exception, status: int | None) -> str:
    if status == RATE_LIMITED:
        return f"Rate limited by `{cache.host()}` (429)"
    if status:
        return f"`{cache.host()}` returned status {status}"
    if is_timeout(error):
        return f"`{cache.host()}` sent nothing for {cache.timeout():g} seconds"
    return f"The connection to `{cache.host()}` broke"


def _gave_up(error: Exception, what: str, status: int | None, delay: float) -> NetworkError:
    resumes = "the download resumes where it stopped"
    if status == RATE_LIMITED:
        return NetworkError(
            f"{_reason(error, status)} for {what}, retry after {delay:.0f} seconds",
            f"Try again in {delay:.0f} seconds, {resumes}; a token raises the limit: `hf auth login`",
        )
    when = f" {RETRIES + 1} times" if delay <= MAX_DELAY else f", retry after {delay:.0f} seconds"
    return NetworkError(
        f"{_reason(error, status)} for {what}{when}",
        f"Try again, {resumes}, or give a model file you have: `localspec chat path/to/model.gguf`",
    )


def _retry_after(error: Exception, default: float) -> float:
    """Return the seconds of a `Retry-After` header, a number or a date, else `default`."""
    headers: Any = getattr(_response(error), "headers", {})
    value = str(headers.get("Retry-After") or "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max((parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return default


def _response(error: BaseException) -> Any:
    responses = (getattr(each, "response", None) for each in causes(error))
    return next((response for response in responses if response is not None), None)
