"""Token recycling: guesses from the target's own earlier logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from localspec.core.contracts import SuccessorDrafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, top
from localspec.core.types import Guess, Logits, Tokens, Verdict
from localspec.drafting.branches import Branches
from localspec.plugins import Option

DOUBT = 4.0  # unseen successors that weigh against those seen, as in drafters/suffix
REJECTED = 4  # positions after the last accepted guess whose most likely token is kept


class RecycleDraft(SuccessorDrafter):
    """Follows, token by token, the most likely successor that the target last gave each token.

    Token Recycling (Luo et al. 2024): a table from each token to its successors, filled from the logits of
    verified drafts, rejected guesses included. With several `successors`, and where the target reads
    branches, the others are branches beside the draft. The table starts empty and is kept from answer to
    answer; a token without an entry ends the draft.
    """

    def __init__(
        self,
        target: Cursor,
        *,
        repeats: Annotated[int, Option("repetitions that make a successor surest", least=1, most=64)] = 8,
        successors: Annotated[int, Option("of a token that are kept, 1 for a chain", least=1, most=64)] = 1,
    ) -> None:
        self._next: dict[int, tuple[int, int]] = {}  # token -> successor, and how often in a row
        self._others: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}  # and their probabilities
        self._repeats, self._successors = repeats, successors
        self._branching = target.branches > 0 and successors > 1

    @property
    def note(self) -> str | None:
        """Why successors are asked for in vain, or None."""
        if self._successors == 1 or self._branching:
            return None
        return f"`successors={self._successors}` is not used: the target's engine reads no branches"

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        """Yield successor after successor, from the last token on, and branches between them."""
        branches = Branches(tokens, self.successors)
        found = self._next.get(tokens[-1]) if tokens else None
        while found is not None:
            token, seen = found
            guess = Guess(token, None, seen / (seen + DOUBT))
            if self._branching:
                yield from branches.better(guess.confidence)
            yield guess
            branches.step(guess)
            found = self._next.get(token)
        if self._branching and tokens:
            branches.end()
            yield from branches.better(0.0)

    def successors(self, tokens: Tokens) -> Sequence[Guess]:
        """Return the likeliest tokens after the last of `tokens`, as the target last saw them."""
        if not self._branching or not tokens or tokens[-1] not in self._others:
            return []
        kept = zip(*self._others[tokens[-1]], strict=True)
        return [Guess(int(token), None, float(share)) for token, share in kept]

    def observe(self, tokens: Tokens, logits: Logits, verdict: Verdict) -> None:
        """Learn the target's successor of each token.

        For accepted tokens the successor is the text itself, so no logits are searched. After a rejected
        guess the most likely tokens at a few positions are kept.
        """
        keys = tokens[len(tokens) - len(logits) :]
        accepted, token = verdict
        for key, successor in zip(keys, [*keys[1 : accepted + 1], token], strict=False):
            self._learn(key, successor)
        last = min(len(logits), accepted + 1 + REJECTED)
        for at in range(accepted + 1, last):
            self._learn(keys[at], int(logits[at].argmax()))
        if self._branching:
            for key, row in zip(keys[:last], logits, strict=False):
                self._keep(key, row)

    def observe_branches(self, tokens: Tokens, branches: Sequence[Guess], logits: Logits) -> None:
        """Learn the successors of branches."""
        for guess, row in zip(branches, logits, strict=True):
            self._keep(guess.token, row)

    def _learn(self, key: int, token: int) -> None:
        held, seen = self._next.get(key, (token, 0))
        self._next[key] = (token, min(seen + 1, self._repeats) if held == token else 1)

    def _keep(self, key: int, row: NDArray[np.float32]) -> None:
        """Keep the likeliest successors of a token, as probabilities among themselves."""
        tokens = top(row, self._successors)
        tokens = tokens[np.argsort(-row[tokens], kind="stable")]
        weights = np.exp(row[tokens] - row[tokens[0]])
        self._others[key] = tokens, weights / weights.sum()
