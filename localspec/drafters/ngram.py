"""Guesses copied from the text itself: what followed the same words before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from localspec.core.contracts import Drafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, Tokens, shared_prefix
from localspec.errors import BadValue
from localspec.plugins import Option


class Ngram(Drafter):
    """Copies what followed the longest earlier match of the text's end, the most recent match first.

    Prompt lookup (Saxena 2023) through an index: for each length, the place where each n-gram of the text
    last ended. A token adds at most `longest` entries, a guess looks up at most as many.
    """

    def __init__(
        self,
        target: Cursor,
        *,
        longest: Annotated[int, Option("longest match in tokens", least=1, most=64)] = 8,
        shortest: Annotated[int, Option("shortest match in tokens", least=1, most=64)] = 2,
    ) -> None:
        del target
        if longest < shortest:
            raise BadValue(
                f"`longest` of `ngram` is {longest} and `shortest` is {shortest}",
                f"Type `ngram:longest={shortest},shortest={longest}`",
            )
        self._sizes = range(longest, shortest - 1, -1)
        self._tokens: list[int] = []
        self._last: list[dict[tuple[int, ...], int]] = []
        self._undo: list[list[tuple[int, tuple[int, ...], int | None]]] = []
        self._clear()

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        """Yield the tokens after the match, then those after the guesses themselves when the text ends."""
        self._follow(tokens)
        at = self._match()
        if at is None:
            return
        period = len(self._tokens) - at
        for step in range(len(self._tokens)):
            # past the end of the text a match goes on in its own guesses, that is in its period
            yield Guess(self._tokens[at + step % period])

    def _clear(self) -> None:
        self._tokens = []
        self._last = [{} for _ in self._sizes]
        self._undo = []

    def _follow(self, tokens: Tokens) -> None:
        """Bring the index in step with `tokens`."""
        shared = shared_prefix(self._tokens, tokens)
        try:
            while len(self._tokens) > shared:
                self._forget()
            for token in tokens[shared:]:
                self._add(token)
        except BaseException:  # an interrupt between two tables
            self._clear()
            raise

    def _add(self, token: int) -> None:
        """Index the n-grams that end before `token`: those with a continuation."""
        end = len(self._tokens)
        tail = tuple(self._tokens[-self._sizes[0] :])
        changes = []
        for level, size in enumerate(self._sizes):
            if size <= end:
                key = tail[-size:]
                changes.append((level, key, self._last[level].get(key)))
                self._last[level][key] = end
        self._undo.append(changes)
        self._tokens.append(token)

    def _forget(self) -> None:
        """Take the last token out of the index again."""
        self._tokens.pop()
        for level, key, before in self._undo.pop():
            if before is None:
                del self._last[level][key]
            else:
                self._last[level][key] = before

    def _match(self) -> int | None:
        """Return where the longest earlier match of the text's end goes on, or None."""
        tail = tuple(self._tokens[-self._sizes[0] :])
        for level, size in enumerate(self._sizes):
            if size <= len(tail):
                at = self._last[level].get(tail[-size:])
                if at is not None:
                    return at
        return None
