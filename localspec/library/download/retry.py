"""How long a hub is waited for that is busy, broken or breaks off: a few times, each said, then an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from time import sleep
from typing import Any, TypeVar

from localspec.errors import NetworkError
from localspec.library.download import cache
from localspec.library.progress import Progress

Answer = TypeVar("Answer")

TRIES = 4  # after the first
PAUSE = 1.0  # seconds before the second try, doubled for each after it
LONGEST = 60.0  # seconds that the hub may ask us to wait at once
BUSY = 429
BROKEN = (500, 502, 503, 504)

# Failed connections, by name, whichever HTTP library huggingface_hub uses today.
_NETWORK = {
    "ConnectionError",
    "TimeoutError",
    "SSLError",
    "HTTPError",
    "TransportError",
    "RequestException",
}


class Patience:
    """What is left of it for one fetch, whatever number of files and sources that asks for."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._left = TRIES

    def renew(self) -> None:
        """Begin anew: something came."""
        self._left = TRIES

    def ask(self, what: str, question: Callable[[], Answer]) -> Answer:
        """Ask again while the hub is busy or broken; raises what `question` raises, and NetworkError."""
        while True:
            try:
                return question()
            except Exception as error:
                if status_of(error) is None:
                    raise
                self.outlast(error, what)

    def outlast(self, error: Exception, what: str) -> None:
        """Wait and return, that `what` may be asked for again.

        Raises NetworkError where that was done often enough or takes too long, and `error` itself where
        waiting does not help.
        """
        status = status_of(error)
        if status not in (None, BUSY, *BROKEN) or (status is None and not is_network(error)):
            raise error
        pause = PAUSE * 2 ** (TRIES - self._left)
        wait = _asked_to_wait(error, pause) if status else min(pause, PAUSE)
        if self._left == 0 or wait > LONGEST:
            raise _given_up(error, what, status, wait) from error
        again = f"asking again in {wait:.0f} s, {self._left} more {'times' if self._left > 1 else 'time'}"
        self._progress.say(f"{_trouble(error, status)}; {again}")
        self._left -= 1
        sleep(wait)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error is about, None for another."""
    status = getattr(_response(error), "status_code", None)
    return status if isinstance(status, int) else None


def is_network(error: BaseException) -> bool:
    """Tell whether a connection failed."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _NETWORK)


def stalled(error: BaseException) -> bool:
    """Tell whether nothing came for too long."""
    return any(
        "Timeout" in kind.__name__ or "timed out" in str(each)
        for each in _chain(error)
        for kind in type(each).__mro__
    )


def _trouble(error: Exception, status: int | None) -> str:
    if status == BUSY:
        return f"`{cache.host()}` is asked too often (429)"
    if status:
        return f"`{cache.host()}` answered {status}"
    if stalled(error):
        return f"`{cache.host()}` sent nothing for {cache.patience():g} seconds"
    return f"The line to `{cache.host()}` broke"


def _given_up(error: Exception, what: str, status: int | None, wait: float) -> NetworkError:
    kept = "what was fetched is kept"
    if status == BUSY:
        return NetworkError(
            f"{_trouble(error, status)} for {what}, and wants {wait:.0f} seconds of rest",
            f"Try again in {wait:.0f} seconds, {kept}; with a token more is allowed: `hf auth login`",
        )
    again = f" {TRIES + 1} times" if wait <= LONGEST else f" and wants {wait:.0f} seconds of rest"
    return NetworkError(
        f"{_trouble(error, status)} for {what}{again}",
        f"Try again, {kept}, or give a model file you have: `localspec chat path/to/model.gguf`",
    )


def _asked_to_wait(error: Exception, otherwise: float) -> float:
    """Return the seconds that a `Retry-After` asks for, as a number or as a date."""
    headers: Any = getattr(_response(error), "headers", {})
    said = str(headers.get("Retry-After") or "").strip()
    if said.isdigit():
        return float(said)
    try:
        return max((parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return otherwise


def _response(error: BaseException) -> Any:
    found = (getattr(each, "response", None) for each in _chain(error))
    return next((each for each in found if each is not None), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came from."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__
