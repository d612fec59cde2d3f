"""Guesses copied from all texts so far: what followed the longest match of the text's end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from localspec.core.contracts import Drafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, Logits, Tokens, Verdict
from localspec.drafters.suffix.automaton import Texts, Walk
from localspec.errors import BadValue
from localspec.plugins import Option
from localspec.state.answers import Store

DOUBT = 4.0  # continuations that were not seen, for a match of one token; a longer match has fewer


class SuffixDraft(Drafter):
    """Copies what followed the longest earlier match: here, in earlier turns and past answers.

    SuffixDecoding (Oliaro et al. 2024), with a suffix automaton in place of its trees, and with the latest
    continuation in place of the most frequent one unless that is much more frequent: on texts that a model
    edits the latest is the likelier one (docs/performance.md). Texts share their
    beginnings: one that goes on where the last one ended costs its new tokens alone, one that was edited
    costs what stands behind the edit, and what stood there before is kept as an earlier turn. No match runs
    from one text into another. A text that comes back is counted once more.

    `note` says why the store is not used, None when it is or when there is none.
    """

    def __init__(
        self,
        target: Cursor,
        *,
        least: Annotated[int, Option("shortest match in tokens", least=1, most=64)] = 1,
        reach: Annotated[float, Option("most guesses for a token of the match", least=0.1, most=256)] = 2.0,
        most: Annotated[int, Option("most tokens to look in", least=1000, most=10_000_000)] = 200_000,
        store: Annotated[str, Option("file that keeps answers for the next time, none when empty")] = "",
        kept: Annotated[int, Option("most tokens in that file", least=1000, most=5_000_000)] = 30_000,
    ) -> None:
        self._target = target
        self._least = least
        self._reach = reach
        self._texts = Texts(most)
        self._store = Store(_checked(store), min(kept, most // 2)) if store else None
        if self._store:
            weakref.finalize(self, self._store.close)

    @property
    def note(self) -> str | None:
        """Say why the store is not used or was begun anew, or None."""
        return self._store.note if self._store else None

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        """Yield the likeliest continuation, with shorter matches where a longer one has none."""
        walk = self.walk(tokens)
        for _ in range(max(1, int(self._reach * walk.length))):
            guess = self.guess(walk)
            if guess is None:
                return
            yield guess
            walk.go(guess.token, copied=True)

    def walk(self, tokens: Tokens) -> Walk:
        """Take in `tokens` and return the place behind them, from where guesses of any source may go on."""
        state = self._texts.follow(tokens)
        return Walk(self._texts.automaton, state)

    def guess(self, walk: Walk) -> Guess | None:
        """Return the likeliest token at a place, None where the match is too short.

        Confidence: count / (total + DOUBT / evidence), so that what was seen once after a long match is surer
        than after a short one; an escape estimate as in PPM (Cleary and Witten 1984).
        """
        if walk.length < self._least:
            return None
        token, count, total = walk.best()
        return Guess(token, None, count / (total + DOUBT / walk.evidence))

    def observe(self, tokens: Tokens, rows: Logits, verdict: Verdict) -> None:
        """Tell answers from prompts, for the store. The first rows tell which vocabulary it must hold."""
        if self._store is None:
            return
        if self._store.width is None:
            vocabulary = self._target.session.vocabulary
            self._texts.add(self._store.open(rows.shape[1], vocabulary))
        self._store.see(tokens[: len(tokens) - len(rows) + 1], len(rows))


def _checked(store: str) -> Path:
    """Return the path of a store; raises BadValue for a folder."""
    path = Path(store).expanduser()
    if path.is_dir():
        raise BadValue(f"`store` of `suffix` is the folder `{store}`", "Give a file in it, new or old")
    return path
