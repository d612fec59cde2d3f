"""A time limit that is kept: work begins only if it is likely to end in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic


class TimeLimit:
    """Counts seconds from now on, and remembers the longest time that each kind of work took.

    `spent` seconds are gone already, in an earlier run.
    """

    def __init__(self, seconds: float, spent: float = 0.0, clock: Callable[[], float] | None = None) -> None:
        self.seconds = seconds
        self._clock = clock or monotonic
        self._started = self._clock() - spent
        self._longest: dict[str, float] = {}

    @property
    def spent(self) -> float:
        """The seconds since the start."""
        return self._clock() - self._started

    def left(self, share: float = 1.0) -> float:
        """Return the seconds until a `share` of the limit is spent, at least 0."""
        return max(self.seconds * share - self.spent, 0.0)

    @contextmanager
    def measured(self, kind: str) -> Iterator[None]:
        """Measure work of a kind, also work that fails."""
        began = self._clock()
        try:
            yield
        finally:
            self._longest[kind] = max(self.longest(kind), self._clock() - began)

    def longest(self, kind: str) -> float:
        """Return the longest seconds that work of a kind took, 0 before any."""
        return self._longest.get(kind, 0.0)

    def fits(self, seconds: float, share: float = 1.0) -> bool:
        """Return whether work of so many seconds is likely to end in a `share` of the limit."""
        left = self.left(share)
        return left > 0 and seconds <= left
