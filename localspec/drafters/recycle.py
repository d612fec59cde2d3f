"""Token recycling: guesses from the target's own earlier logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from localspec.core.contracts import Drafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, Logits, Tokens, Verdict
from localspec.plugins import Option

DOUBT = 4.0  # unseen successors that weigh against those seen, as in drafters/suffix
REJECTED = 4  # positions after the last accepted guess whose most likely token is kept


class RecycleDraft(Drafter):
    """Follows, token by token, the most likely successor that the target last gave each token.

    Token Recycling (Luo et al. 2024): a table from each token to its successors, filled from the logits of
    verified drafts, rejected guesses included. The paper verifies a tree of the k most likely ones; a chain
    needs only the first. The table starts empty and is kept from answer to answer; a token without an entry
    ends the draft.
    """

    def __init__(
        self,
        target: Cursor,
        *,
        repeats: Annotated[int, Option("repetitions that make a successor surest", least=1, most=64)] = 8,
    ) -> None:
        del target
        self._next: dict[int, tuple[int, int]] = {}  # token -> successor, and how often in a row
        self._repeats = repeats

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        """Yield successor after successor, from the last token on."""
        found = self._next.get(tokens[-1]) if tokens else None
        while found is not None:
            token, seen = found
            yield Guess(token, None, seen / (seen + DOUBT))
            found = self._next.get(token)

    def observe(self, tokens: Tokens, logits: Logits, verdict: Verdict) -> None:
        """Learn the target's successor of each token.

        For accepted tokens the successor is the text itself, so no logits are searched. After a rejected
        guess the most likely tokens at a few positions are kept.
        """
        keys = tokens[len(tokens) - len(logits) :]
        accepted, token = verdict
        for key, successor in zip(keys, [*keys[1 : accepted + 1], token], strict=False):
            self._learn(key, successor)
        for at in range(accepted + 1, min(len(logits), accepted + 1 + REJECTED)):
            self._learn(keys[at], int(logits[at].argmax()))

    def _learn(self, key: int, token: int) -> None:
        held, seen = self._next.get(key, (token, 0))
        self._next[key] = (token, min(seen + 1, self._repeats) if held == token else 1)
