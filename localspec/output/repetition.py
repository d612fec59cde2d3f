"""Notice an answer that repeats one passage without end."""

from __future__ import annotations

import numpy as np

PERIOD = 512  # tokens of a passage at most
TIMES = 6  # a passage must come again this often,
LENGTH = 1024  # and its repetitions must have this many tokens: what a user asks for may repeat, too


class Repetition:
    """Follows an answer token by token.

    For each period p it counts the last tokens in a row that equal those p before them: a text whose end has
    period p has as many such tokens as the repetitions of its passage are long.
    """

    def __init__(self) -> None:
        self._recent = np.full(PERIOD, -1, np.int64)  # the last tokens, the latest first
        self._repeated = np.zeros(PERIOD, np.int64)  # by period, from 1 on
        self._enough = np.maximum(TIMES * np.arange(1, PERIOD + 1), LENGTH)

    def add(self, token: int) -> bool:
        """Add a token; return whether the answer repeats itself beyond doubt."""
        self._repeated += 1
        self._repeated *= self._recent == token
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token
        return bool((self._repeated >= self._enough).any())
