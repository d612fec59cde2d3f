"""Copies from the text that an answer is expected to be, as far as the answer has followed it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from localspec.core.contracts import ExpectingDrafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, Tokens, shared_prefix
from localspec.plugins import Option

OTHER_TIME = 0.25  # cost of one timestamp for another, beside 1 of one token for another
RECENT = 12  # tokens of the answer by which the next one is judged
PRIOR = (4.0, 5.0)  # accepted and judged before the first


class ExpectedDraft(ExpectingDrafter):
    """Guesses what follows, in the expected text, the place that the answer has reached.

    The place is the end of the part of the expected text with the least edit distance to the answer
    (Levenshtein 1966; the alignment is that of Sellers 1980), so a word that differs, is missing or was added
    costs the guesses beside it and no others. Without an expected text there are no guesses.
    """

    def __init__(
        self,
        target: Cursor,
        *,
        times: Annotated[int, Option("first of the timestamps of a speech model, 0 without", least=0)] = 0,
    ) -> None:
        del target
        self._first_time = times
        self._set(np.zeros(0, np.int64), 0)

    def expect(self, prompt: Tokens, answer: Tokens) -> None:
        """Take in the expected answer to a prompt, in place of the one before."""
        self._set(np.array(answer, np.int64), len(prompt))

    def _set(self, expected: NDArray[np.int64], start: int) -> None:
        self._expected, self._start = expected, start
        self._times = expected >= self._first_time if self._first_time else np.zeros(len(expected), bool)
        self._answer: list[int] = []
        self._distances = [np.arange(len(expected) + 1, dtype=np.float64)]  # after each token of the answer
        self._hits: list[bool] = []  # whether the token after each place was the expected one

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        """Yield the rest of the expected text."""
        if not len(self._expected):
            return
        self._follow(list(tokens[self._start :]))
        at, confidence = self._place(), self._confidence()
        last = self._answer[-1] if self._answer else -1
        for place in range(at, len(self._expected)):
            token = self._shifted(place, last)
            yield Guess(token, None, confidence)
            last = token

    def _shifted(self, place: int, last: int) -> int:
        """Return the expected token; the second of two timestamps is as much later as was expected."""
        token = int(self._expected[place])
        if place and self._times[place] and self._times[place - 1] and last >= self._first_time:
            return last + token - int(self._expected[place - 1])
        return token

    def _follow(self, answer: list[int]) -> None:
        shared = shared_prefix(self._answer, answer)
        del self._distances[shared + 1 :], self._hits[shared:]
        self._answer = answer[:shared]
        for token in answer[shared:]:
            place = self._place()
            last = self._answer[-1] if self._answer else -1
            self._hits.append(place < len(self._expected) and self._shifted(place, last) == token)
            self._distances.append(self._extended(self._distances[-1], token))
            self._answer.append(token)

    def _extended(self, before: NDArray[np.float64], token: int) -> NDArray[np.float64]:
        """Return the distances of the longer answer to each beginning of the expected text."""
        differs = np.where(self._expected == token, 0.0, 1.0)
        if self._first_time and token >= self._first_time:
            differs = np.where(self._times & (differs > 0), OTHER_TIME, differs)
        found = before + 1
        found[1:] = np.minimum(found[1:], before[:-1] + differs)
        steps = np.arange(len(found))
        return np.minimum.accumulate(found - steps) + steps

    def _place(self) -> int:
        """Return how many tokens of the expected text the answer has passed; of equal places the last."""
        distances = self._distances[-1]
        if self._answer:
            distances = distances.copy()
            distances[1:] -= 0.5 * (self._expected == self._answer[-1])
        return len(distances) - 1 - int(distances[::-1].argmin())

    def _confidence(self) -> float:
        recent = self._hits[-RECENT:]
        return (PRIOR[0] + sum(recent)) / (PRIOR[1] + len(recent))
