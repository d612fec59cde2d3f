"""A draft-length policy driven as the decoding loop drives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Candidate, Guess, LazyGuess, Proposal, Step


class Driven:
    """Adds to each step the candidates that the policy was asked about, and begins and ends its answers."""

    def __init__(self, policy: DraftLengthPolicy) -> None:
        self.policy = policy
        self._proposals: list[Proposal] = []
        self._answering = False

    def wants_more(self, draft: Sequence[Guess], candidate: Candidate) -> bool:
        self._begin()
        wanted = self.policy.wants_more(draft, candidate)
        behind = candidate.behind if isinstance(candidate, LazyGuess) else 0
        confidence = candidate.confidence if isinstance(candidate, Guess) else 1.0
        self._proposals.append(Proposal(candidate.source, behind, wanted, confidence))
        return wanted

    def learn(self, last: Step) -> None:
        self._begin()
        self.policy.learn(replace(last, proposals=tuple(self._proposals)))
        self._proposals = []
        if last.finish:
            self.end()

    def end(self) -> None:
        """End the answer, as an interrupt does in the middle of one."""
        self.policy.end()
        self._answering = False

    def _begin(self) -> None:
        if not self._answering:
            self.policy.begin([])
            self._answering = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)
