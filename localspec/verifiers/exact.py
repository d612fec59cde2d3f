"""Verification by agreement: a guess is accepted if it is the token that the target chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from localspec.core.contracts import Verifier
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, Logits, Tokens, Verdict
from localspec.plugins import Option

TOKEN, POSITION = "token", "position"


class Exact(Verifier):
    """Accepts by agreement: token for token the text that plain decoding writes, sampled or greedy.

    The target's choice at a position depends on the seed and the text alone (see Sampler), so drafts change
    nothing but the speed. A coupled draft of distribution q agrees with a target of p with a probability of
    at least (1 - d) / (1 + d), where d is their total variation distance (Daliri et al. 2025, theorem 1).
    With the noise of a `position` alone another text is sampled, from the same distribution: its tokens are
    drawn by inverse CDF, which `k_forcing` guesses better and all other drafters guess worse.
    """

    def __init__(
        self,
        *,
        noise: Annotated[str, Option("what draws a sampled token", choices=(TOKEN, POSITION))] = TOKEN,
    ) -> None:
        self.quantiles = noise == POSITION

    def verify(self, tokens: Tokens, draft: Sequence[Guess], rows: Logits, sampler: Sampler) -> Verdict:
        """Return the number of guesses that agree, and the target's choice after them."""
        before = list(tokens)
        for accepted, guess in enumerate(draft):
            token = sampler.choose(rows[accepted], before)
            if token != guess.token:
                return Verdict(accepted, token)
            before.append(token)
        return Verdict(len(draft), sampler.choose(rows[len(draft)], before))
