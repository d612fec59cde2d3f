"""Prompt lookup: copies what followed the same n-gram earlier in the text."""

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

    Prompt lookup (Saxena 2023) with an index: for each length, the position where each n-gram of the text
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
        """Yield the tokens after the match; past the end of the text, those after the guesses themselves."""
        self._follow(tokens)
        at = self._match()
        if at is None:
            return
        period = len(self._tokens) - at
        for step in range(len(self._tokens)):
            # past the end of the text the match continues in its own guesses, with the period of the match
            yield Guess(self._tokens[at + step % period])

    def _clear(self) -> None:
        self._tokens = []
        self._last = [{} for _ in self._sizes]
        self._undo = []

    def _follow(self, tokens: Tokens) -> None:
        """Update the index to `tokens`."""
        shared = shared_prefix(self._tokens, tokens)
        try:
            while len(self._tokens) > shared:
                self._forget()
            for token in tokens[shared:]:
                self._add(token)
        except BaseException:  # an interrupt may have come between two tables
            self._clear()
            raise

    def _add(self, token: int) -> None:
        """Index the n-grams that `token` follows."""
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
        """Remove the last token from the index."""
        self._tokens.pop()
        for level, key, before in self._undo.pop():
            if before is None:
                del self._last[level][key]
            else:
                self._last[level][key] = before

    def _match(self) -> int | None:
        """Return the position after the longest earlier match of the text's end, or None."""
        tail = tuple(self._tokens[-self._sizes[0] :])
        for level, size in enumerate(self._sizes):
            if size <= len(tail):
                at = self._last[level].get(tail[-size:])
                if at is not None:
                    return at
        return None
