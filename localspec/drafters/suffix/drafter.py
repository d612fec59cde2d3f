"""Copies from all texts so far what followed the longest match of the text's end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from localspec.core.contracts import CopyingDrafter, CopyWalk
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import UNKNOWN, Guess, Logits, Tokens, Verdict
from localspec.disk import given
from localspec.drafters.suffix.automaton import Texts, Walk
from localspec.errors import BadValue
from localspec.plugins import Option
from localspec.state.answers import Store

JOINT = 16  # tokens of a prompt before the expected answer: its first tokens are then copied, too
DOUBT = 4.0  # unseen continuations of a match of one token; a longer match has fewer


class SuffixDraft(CopyingDrafter):
    """Copies what followed the longest earlier match: in this text, in earlier turns and in past answers.

    SuffixDecoding (Oliaro et al. 2024), with a suffix automaton in place of its trees, and with the latest
    continuation in place of the most frequent one unless that is much more frequent: in texts that a model
    edits, the latest is the more likely one (docs/performance.md). Texts share their beginnings: a text that
    continues the last one costs its new tokens alone, an edited one costs what follows the edit, and the old
    continuation is kept as an earlier turn. No match runs from one text into another. A text that returns is
    counted again.
    """

    def __init__(
        self,
        target: Cursor,
        *,
        min_match: Annotated[int, Option("shortest match in tokens", least=1, most=64)] = 1,
        reach: Annotated[float, Option("maximum guesses per token of the match", least=0.1, most=256)] = 2.0,
        max_tokens: Annotated[int, Option("tokens to search", least=1000, most=10_000_000)] = 200_000,
        store: Annotated[str, Option("file that keeps answers for the next run, none when empty")] = "",
        max_stored: Annotated[int, Option("tokens kept in that file", least=1000, most=5_000_000)] = 30_000,
    ) -> None:
        self._target = target
        self._min_match = min_match
        self._reach = reach
        self._texts = Texts(max_tokens)
        self._store = Store(_checked(store), min(max_stored, max_tokens // 2)) if store else None

    @property
    def note(self) -> str | None:
        """Why the store is not used or was started anew, or None."""
        return self._store.note if self._store else None

    def expect(self, prompt: Tokens, answer: Tokens) -> None:
        """Take in the expected answer to a prompt as the latest of the earlier texts."""
        self._texts.follow(prompt)
        self._texts.add([[*prompt[-JOINT:], *(token for token in answer if token != UNKNOWN)]])

    def begin(self, prompt: Tokens) -> None:
        """Start an answer: what follows the prompt goes to the store."""
        if self._store is not None:
            self._store.begin(len(prompt))

    def end(self) -> None:
        """End the answer and write it to the store."""
        if self._store is not None:
            self._store.close()

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        """Yield the most likely continuation, from a shorter match where a longer one has none."""
        walk = self.walk(tokens)
        for _ in range(max(1, int(self._reach * walk.length))):
            guess = self.guess(walk)
            if guess is None:
                return
            yield guess
            walk.go(guess.token, copied=True)

    def walk(self, tokens: Tokens) -> Walk:
        """Take in `tokens` and return the position after them; guesses of any source may continue from it."""
        state = self._texts.follow(tokens)
        return Walk(self._texts.automaton, state)

    def guess(self, walk: CopyWalk) -> Guess | None:
        """Return the most likely token at a position, None if the match is too short.

        Its confidence is count / (total + DOUBT / evidence), so a continuation seen once counts more after a
        long match than after a short one; an escape estimate as in PPM (Cleary and Witten 1984).
        """
        assert isinstance(walk, Walk)
        if walk.length < self._min_match:
            return None
        token, count, total = walk.best()
        return Guess(token, None, count / (total + DOUBT / walk.evidence))

    def observe(self, tokens: Tokens, logits: Logits, verdict: Verdict) -> None:
        """Keep the answer so far for the store; the first logits tell its vocabulary."""
        if self._store is None:
            return
        if self._store.width is None:
            vocabulary = self._target.session.vocabulary
            self._texts.add(self._store.open(logits.shape[1], vocabulary))
        self._store.see(tokens[: len(tokens) - len(logits) + 1])


def _checked(store: str) -> Path:
    """Return the path of a store; raises BadValue for a folder."""
    path = given.path_of(store)
    if path.is_dir():
        raise BadValue(f"`store` of `suffix` is the folder `{store}`", "Give a file in it, new or existing")
    return path
