"""Statistics of an answer: the sums over its steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median_low
from typing import NamedTuple

from localspec.core.types import Step


@dataclass(slots=True)
class SourceCounts:
    """The guesses of one source: drafted, accepted, and the seconds they cost."""

    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0

    def add(self, other: SourceCounts) -> None:
        """Add the guesses of another count."""
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.seconds += other.seconds


class Emitted(NamedTuple):
    """The tier that emitted a token, and how much likelier it found the token than the target did."""

    tier: str
    overshoot: float = 0.0


@dataclass(slots=True)
class TierStats:
    """The tokens of a lossy answer by the tier that emitted them.

    `overshoot` is the sum of p_draft - p_target over the `unseen` tokens: those of tiers below the target.
    """

    tokens: dict[str, int] = field(default_factory=dict)
    unseen: int = 0
    overshoot: float = 0.0

    def add(self, emitted: Iterable[Emitted], target: str) -> None:
        """Add tokens, of which those of the tier `target` are the target's own."""
        for tier, overshoot in emitted:
            self.tokens[tier] = self.tokens.get(tier, 0) + 1
            self.unseen += tier != target
            self.overshoot += overshoot

    @property
    def shares(self) -> dict[str, float]:
        """The share of the tokens by tier."""
        total = sum(self.tokens.values())
        return {tier: count / total for tier, count in self.tokens.items()}

    @property
    def overshoot_per_token(self) -> float:
        """The mean overshoot of an unseen token."""
        return self.overshoot / self.unseen if self.unseen else 0.0


@dataclass(slots=True)
class Stats:
    """Sums over steps. `drafted_at[i]` and `accepted_at[i]` count guesses at position i of a draft.

    `sources` counts guesses by source, under "" for a drafter with a single source.
    """

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    sources: dict[str, SourceCounts] = field(default_factory=dict)
    plain_seconds: list[float] = field(default_factory=list)  # of each pass without a guess

    def add(self, last: Step) -> None:
        """Add one step."""
        self.tokens += len(last.tokens)
        self.passes += last.passes
        self.drafted += last.drafted
        self.accepted += last.accepted
        self.draft_seconds += last.draft_seconds
        self.target_seconds += last.target_seconds
        if not last.drafted and not last.branches and len(last.tokens) == 1:
            self.plain_seconds.append(last.draft_seconds + last.target_seconds)
        missing = last.drafted - len(self.drafted_at)
        self.drafted_at += [0] * missing
        self.accepted_at += [0] * missing
        for position in range(last.drafted):
            self.drafted_at[position] += 1
            self.accepted_at[position] += position < last.accepted
        for position, (guess, seconds) in enumerate(zip(last.draft, last.costs, strict=True)):
            counts = self.sources.setdefault(guess.source, SourceCounts())
            counts.drafted += 1
            counts.accepted += position < last.accepted
            counts.seconds += seconds

    @property
    def plain_token_seconds(self) -> float | None:
        """Seconds of a token without drafts: the lower median of passes without a guess, None without any."""
        return median_low(self.plain_seconds) if self.plain_seconds else None

    @property
    def tokens_per_pass(self) -> float:
        """Tokens of the answer per target pass."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafted tokens that were accepted, None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None
