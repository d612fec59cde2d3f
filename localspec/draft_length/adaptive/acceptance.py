"""How likely guesses are accepted: by what was seen of guesses like them, and by what the drafter says."""

from __future__ import annotations

from bisect import bisect_right
from math import sqrt
from typing import Any

from localspec.draft_length.adaptive.state import rows

HALF_LIFE = 50.0  # tokens after which what was seen in an answer counts half
STRENGTH = 4.0  # guesses that a prior is worth
BINS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)  # of confidence: fine where most drafts are
LIKELY = 0.7  # rate of the first guesses of a draft model until any was verified
FIRST, LATER, NEXT_FIRST, NEXT, RUN, BRANCH = range(6)

Kind = tuple[str, int, int]  # source, bin of confidence, and one of the six above


class Acceptance:
    """Acceptance rates of guesses that are made, by their confidence, and of guesses to come.

    Each is the mean of a Beta distribution over guesses of the same source, bin of confidence, and place in
    the draft: the evidence of this answer, with the rate in earlier answers as prior, whose own prior is the
    drafter's confidence. Evidence of this answer halves every HALF_LIFE tokens, that of others with each
    answer. A guess to come is judged by the confidence of the one before it.
    """

    def __init__(self) -> None:
        self._recent: dict[
            Kind, tuple[float, float, int]
        ] = {}  # accepted, all, faded, at the last token seen
        self._past: dict[Kind, tuple[float, float]] = {}
        self._tokens = 0

    def begin(self) -> None:
        """Start an answer."""
        self._recent = {}
        self._past = {
            kind: (accepted / 2, count / 2) for kind, (accepted, count) in self._past.items() if count > 0.1
        }

    def of(self, source: str, confidence: float, at: int, luck: float = 0.0) -> float:
        """Return the rate of a guess at position `at` of a draft, given that those before it are accepted.

        The rate is `luck` standard deviations above the mean.
        """
        kind = (source, bisect_right(BINS, confidence), LATER if at else FIRST)
        return self._rate(kind, confidence, luck)

    def of_branch(self, source: str, confidence: float, luck: float = 0.0) -> float:
        """Return the rate at which the target says a branch's guess, given that it comes to its parent."""
        return self._rate((source, bisect_right(BINS, confidence), BRANCH), confidence, luck)

    def next(self, source: str, confidence: float | None, luck: float = 0.0) -> float:
        """Return the rate of a guess that follows one of `confidence`, None for the first of a draft."""
        if confidence is None:
            return self._rate((source, 0, NEXT_FIRST), LIKELY, luck)
        return self._rate((source, bisect_right(BINS, confidence), NEXT), confidence, luck)

    def run(self, source: str, first: float, luck: float = 0.0) -> float:
        """Return the rate of later guesses, if the first one has the rate `first`."""
        return self._rate((source, 0, RUN), first, luck)

    def learn(self, source: str, confidence: float, at: int, before: float | None, accepted: bool) -> None:
        """Take in a verified guess at position `at`, after one of confidence `before`."""
        self._count((source, bisect_right(BINS, confidence), LATER if at else FIRST), accepted)
        if before is None:
            self._count((source, 0, NEXT_FIRST), accepted)
        else:
            self._count((source, 0, RUN), accepted)
            self._count((source, bisect_right(BINS, before), NEXT), accepted)

    def learn_branch(self, source: str, confidence: float, said: bool) -> None:
        """Take in whether the target said a branch's guess, after it came to its parent."""
        self._count((source, bisect_right(BINS, confidence), BRANCH), said)

    def advance(self, tokens: int) -> None:
        """Take in that the answer has so many more tokens."""
        self._tokens += tokens

    def _faded(self, kind: Kind) -> tuple[float, float]:
        if kind not in self._recent:
            return 0.0, 0.0
        accepted, count, then = self._recent[kind]
        fade = 0.5 ** ((self._tokens - then) / HALF_LIFE)
        return accepted * fade, count * fade

    def _rate(self, kind: Kind, prior: float, luck: float) -> float:
        if kind in self._past:
            accepted, count = self._past[kind]
            prior = (accepted + STRENGTH * prior) / (count + STRENGTH)
        accepted, count = self._faded(kind)
        count += STRENGTH
        mean = (accepted + STRENGTH * prior) / count
        return min(mean + luck * sqrt(mean * (1 - mean) / (count + 1)), 1.0) if luck else mean

    def _count(self, kind: Kind, accepted: bool) -> None:
        good, count = self._faded(kind)
        self._recent[kind] = good + accepted, count + 1, self._tokens
        good, count = self._past.get(kind, (0.0, 0.0))
        self._past[kind] = good + accepted, count + 1

    def state(self) -> list[list[Any]]:
        """Return the evidence as plain values."""
        return [[*kind, *evidence] for kind, evidence in self._past.items()]

    def restore(self, values: Any) -> None:
        """Restore a `state`; raises ValueError for any other value."""
        for source, bin_, place, accepted, count in rows(values, str, int, int, float, float):
            if accepted > count + 1e-6 or bin_ > len(BINS) or place > BRANCH:
                raise ValueError(values)
            self._past[source, bin_, place] = accepted, count
