"""Notice an answer that repeats one passage without end."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

PERIOD = 512  # tokens of a passage at most
TIMES = 6  # a passage must come again this often,
LENGTH = 1024  # and its repetitions must have this many tokens: what a user asks for may repeat, too
COUNTING_LENGTH = 3 * LENGTH  # of a passage in which numbers change, such as "Step 17: ..."
CHANGING = 8  # one token in so many may be a number that changes: a table has more of them

NUMBER = -2  # stands for any token of a number


class Repetition:
    """Follows an answer token by token.

    For each period p it counts the last tokens in a row that equal those p before them: a text whose end has
    period p has as many such tokens as the repetitions of its passage are long. With `is_number`, which tells
    whether a token is part of a number, a passage may also count.
    """

    def __init__(self, is_number: Callable[[int], bool] | None = None) -> None:
        self._same = _Periods(LENGTH)
        self._counting = _Periods(COUNTING_LENGTH)
        self._is_number = cache(is_number) if is_number else None
        self._last = np.full(2 * PERIOD, -1, np.int64)  # tokens, the latest first

    def add(self, token: int) -> bool:
        """Add a token; return whether the answer repeats itself beyond doubt."""
        if self._same.add(token).size:
            return True
        if self._is_number is None:
            return False
        self._last[1:] = self._last[:-1]
        self._last[0] = token
        periods = self._counting.add(NUMBER if self._is_number(token) else token)
        return any(CHANGING * self._changed(period) <= PERIOD for period in periods)

    def _changed(self, period: int) -> int:
        """Return how many of the last PERIOD tokens differ from those a period before them."""
        return int(np.count_nonzero(self._last[:PERIOD] != self._last[period : period + PERIOD]))


class _Periods:
    """Counts, for each period, the last tokens that equal those a period before them."""

    def __init__(self, length: int) -> None:
        self._recent = np.full(PERIOD, -1, np.int64)  # the last tokens, the latest first
        self._repeated = np.zeros(PERIOD, np.int64)  # by period, from 1 on
        self._enough = np.maximum(TIMES * np.arange(1, PERIOD + 1), length)

    def add(self, token: int) -> NDArray[np.int64]:
        """Add a token; return the periods that have come again often enough."""
        self._repeated += 1
        self._repeated *= self._recent == token
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token
        return np.flatnonzero(self._repeated >= self._enough) + 1
