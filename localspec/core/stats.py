"""Statistics of an answer: the sums over its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median_low

from localspec.core.types import Step


@dataclass(slots=True)
class SourceCounts:
    """The guesses of one source: drafted, accepted, and the seconds they cost."""

    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0


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
        self.passes += 1
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
