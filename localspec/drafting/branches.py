"""Branches of a draft: what the target may say instead of the path's guesses, likeliest first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count

from localspec.core.types import Guess, Tokens

LEAST = 0.04  # probability that the target says a branch, below which it is not offered
MOST = 24  # branches that are offered beside a draft


class Branches:
    """Grows branches beside the path of a draft after `text`, by the likeliest successors of each token.

    The tree grows best first (OPT-Tree, Wang et al. 2024): the next guess is the one that the target most
    likely says, of all that follow the text, the path or a branch.
    """

    def __init__(self, text: Tokens, successors: Callable[[Tokens], Sequence[Guess]]) -> None:
        self._last, self._successors = list(text[-1:]), successors
        self._path: tuple[int, ...] = ()
        self._survival = 1.0  # of the path
        self._heap: list[tuple[float, int, Guess]] = []
        self._numbers, self._left = count(), MOST

    def step(self, guess: Guess) -> None:
        """Let the path go on with `guess`, beside its likeliest alternatives."""
        self._grow(self._path, self._survival, but=guess.token)
        self._path += (guess.token,)
        self._survival *= guess.confidence

    def end(self) -> None:
        """Let the path end; anything may follow it."""
        self._grow(self._path, self._survival)

    def better(self, confidence: float) -> Iterator[Guess]:
        """Yield the branches that are likelier than a path guess of this confidence, likeliest first."""
        while self._left and self._heap and -self._heap[0][0] > self._survival * confidence:
            survival, _, guess = heapq.heappop(self._heap)
            self._left -= 1
            yield guess
            assert guess.after is not None
            self._grow((*guess.after, guess.token), -survival)

    def _grow(self, after: tuple[int, ...], survival: float, but: int | None = None) -> None:
        """Keep the successors of a token that the target says with probability `survival`."""
        if survival < LEAST:
            return
        for guess in self._successors([*self._last, *after]):
            if (reached := survival * guess.confidence) < LEAST:
                break
            if guess.token != but:
                entry = guess._replace(after=after)
                heapq.heappush(self._heap, (-reached, next(self._numbers), entry))
