"""Copies from the text that an answer is expected to be, wherever the answer has come in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from localspec.core.contracts import ExpectingDrafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import UNKNOWN, Guess, Tokens, shared_prefix
from localspec.plugins import Option

OTHER, SKIPPED = -1.0, -1.1  # scores of a token in place of another, and of one too many or too few; equal: 1
OTHER_TIME = 0.25  # of a timestamp in place of another
BEGINNING = 3.0  # score of an answer that has not begun: its beginning is that of the expected text
ENOUGH = 1.0  # score from which there are guesses: that of one equal token
MOST = 8.0  # score of a long run: so many tokens that differ, and another place may be the right one
RECENT = 12  # tokens of the answer by which the next one is judged
DOUBT = 0.5  # score that is worth nothing
PRIOR = (4.0, 5.0)  # accepted and judged before the first


class ExpectedDraft(ExpectingDrafter):
    """Guesses what follows, in the expected text, the place that the answer has reached.

    The place is the end of the best local alignment of both (Smith and Waterman 1981), so a word that
    differs, is missing or was added costs the guesses beside it and no others, and so may the answer's
    beginning be missing. Without an expected text there are no guesses.
    """

    def __init__(
        self,
        target: Cursor,
        *,
        times: Annotated[int, Option("first of the timestamps of a speech model, 0 without", least=0)] = 0,
    ) -> None:
        del target
        self._first_time = times
        self.expect([], [])

    def expect(self, prompt: Tokens, answer: Tokens) -> None:
        """Take in the expected answer to a prompt, in place of the one before."""
        self._expected, self._start = np.array(answer, np.int64), len(prompt)
        self._times = (self._expected >= self._first_time) & (self._first_time > 0)
        self._answer: list[int] = []
        scores = np.zeros(len(answer) + 1)
        scores[0] = 0.0 if list(answer[:1]) == [UNKNOWN] else BEGINNING
        self._scores = [scores]  # of each place, after each token of the answer
        self._hits: list[bool] = []  # whether the token after each place was the expected one

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        """Yield the rest of the expected text."""
        if not len(self._expected):
            return
        self._follow(list(tokens[self._start :]))
        if (place := self._place()) is None:
            return
        confidence, last = self._confidence(place), self._answer[-1] if self._answer else UNKNOWN
        for at in range(place, len(self._expected)):
            last = self._shifted(at, last)
            if last == UNKNOWN:
                return
            yield Guess(last, None, confidence)

    def _shifted(self, place: int, last: int) -> int:
        """Return the expected token; the second of two timestamps is as much later as was expected."""
        token = int(self._expected[place])
        if place and self._times[place] and self._times[place - 1] and last >= self._first_time:
            return last + token - int(self._expected[place - 1])
        return token

    def _follow(self, answer: list[int]) -> None:
        shared = shared_prefix(self._answer, answer)
        del self._scores[shared + 1 :], self._hits[shared:]
        self._answer = answer[:shared]
        for token in answer[shared:]:
            place, last = self._place(), self._answer[-1] if self._answer else UNKNOWN
            known = place is not None and place < len(self._expected)
            self._hits.append(known and self._shifted(place or 0, last) == token)
            self._scores.append(self._extended(self._scores[-1], token))
            self._answer.append(token)

    def _extended(self, before: NDArray[np.float64], token: int) -> NDArray[np.float64]:
        """Return the scores of the alignments of the longer answer that end at each place."""
        equal = np.where(self._expected == token, 1.0, OTHER)
        if self._first_time and token >= self._first_time:
            equal = np.where(self._times & (equal < 0), OTHER_TIME, equal)
        found = before + SKIPPED
        found[1:] = np.maximum(found[1:], before[:-1] + equal)
        skips = SKIPPED * np.arange(len(found))
        scores: NDArray[np.float64] = np.clip(np.maximum.accumulate(found - skips) + skips, 0.0, MOST)
        return scores

    def _place(self) -> int | None:
        """Return how many tokens of the expected text the answer has passed, None if it is not in it."""
        scores = self._scores[-1]
        best = int(scores.argmax())
        return best if scores[best] >= ENOUGH else None

    def _confidence(self, place: int) -> float:
        """Return the share of recent guesses that were right, less where few tokens tell the place."""
        recent, score = self._hits[-RECENT:], float(self._scores[-1][place])
        return (PRIOR[0] + sum(recent)) / (PRIOR[1] + len(recent)) * score / (score + DOUBT)
