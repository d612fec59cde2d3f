"""Guesses from the target's own rows: what it thought likeliest after a token before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from localspec.core.contracts import Drafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, Logits, Tokens, Verdict
from localspec.plugins import Option

PRIOR = 0.4  # share that is taken to stand before any has been judged
DOUBT = 4.0  # judgements that the prior is worth
REJECTED = 4  # rows behind the last guess that stood whose likeliest token is looked up
FADE = 0.98  # of what earlier judgements weigh is left after each new one


class RecycleDraft(Drafter):
    """Follows, token by token, what the target last found likeliest after each: also in rejected drafts.

    Token Recycling (Luo et al. 2024): a table from a token to its successors, filled from the checked rows.
    The paper reads a tree of the k likeliest in one pass; a chain uses the likeliest alone, so no more is
    kept. The table starts empty and stays from answer to answer; a token that has not been read with a row
    ends the draft.
    """

    def __init__(
        self,
        target: Cursor,
        *,
        sure: Annotated[int, Option("rows in a row that make a successor surest", least=1, most=64)] = 8,
    ) -> None:
        del target
        self._next: dict[int, tuple[int, int]] = {}  # token -> successor, for how many rows running
        self._stood = [0.0] * (sure + 1)  # by the number of rows, faded
        self._judged = [0.0] * (sure + 1)

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        """Yield successor after successor, from the last token on."""
        found = self._next.get(tokens[-1]) if tokens else None
        while found is not None:
            token, seen = found
            yield Guess(token, None, (self._stood[seen] + PRIOR * DOUBT) / (self._judged[seen] + DOUBT))
            found = self._next.get(token)

    def observe(self, tokens: Tokens, rows: Logits, verdict: Verdict) -> None:
        """Keep what the target said after each token, and judge what stood there.

        That is the text as far as guesses stood, and no row need be searched for it. Behind a rejected guess
        the likeliest tokens of a few rows are kept, but not judged: no guesses are made for such a text.
        """
        keys = tokens[len(tokens) - len(rows) :]
        accepted, token = verdict
        for key, told in zip(keys, [*keys[1 : accepted + 1], token], strict=False):
            self._learn(key, told, judge=True)
        for at in range(accepted + 1, min(len(rows), accepted + 1 + REJECTED)):
            self._learn(keys[at], int(rows[at].argmax()), judge=False)

    def _learn(self, key: int, token: int, *, judge: bool) -> None:
        held, seen = self._next.get(key, (token, 0))
        if judge and seen:
            self._stood[seen] = self._stood[seen] * FADE + (held == token)
            self._judged[seen] = self._judged[seen] * FADE + 1
        most = len(self._judged) - 1
        self._next[key] = (token, min(seen + 1, most) if held == token else 1)
