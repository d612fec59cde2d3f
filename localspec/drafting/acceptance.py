"""Online estimates of the acceptance rate: by position in a draft, and by class of guess."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from math import exp, sqrt

TINY = 1e-9  # samples: keeps a division defined

PRIOR = 0.6  # acceptance rate of a first guess before any has been verified
FEW = 2.0  # samples that a prior, or evidence from before a pause or a change, is worth
NEIGHBOUR = 8.0  # samples that the rate of the previous position is worth
MAX_SAMPLES = 100.0  # that evidence is worth at most: older evidence fades
DRIFT = 0.02  # how fast an unvisited position forgets and approaches the one before it
SURPRISE = 0.92  # share of the surprise so far that is left after each guess: about a dozen guesses count
CHANGE = 2.8  # standard deviations of surprise that say that the text has changed
CALM = 0.5  # variance added to them: one unlikely guess is no change

BINS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)  # of confidence: fine where most drafts are
LATER = "+"  # suffix of the class of guesses after a draft's first one
DOUBT = 0.5  # information that "this class is as good as any other" is worth
MAX_INFORMATION = 8.0  # that a class holds, about 40 guesses: older evidence fades
MAX_ODDS = 50.0  # the most that a class changes the odds


class PositionRates:
    """The acceptance rate at each position of a draft, given that all guesses before it were accepted.

    Each position's own evidence is mixed with the rate of the position before it, as if those samples had
    been seen here too: deep positions are seldom verified.
    """

    def __init__(self) -> None:
        self.accepted: list[float] = []  # of those seen, faded like them
        self.seen: list[float] = []
        self.prior = PRIOR
        self._rates: list[float] = []
        self._surprise = self._variance = 0.0

    def at(self, position: int) -> float:
        """Return the rate at `position`, counted from 0; past the last seen position it is the last rate."""
        rates = self._rates
        if position < len(rates):
            return rates[position]
        return rates[-1] if rates else self.prior

    def first(self, count: int) -> list[float]:
        """Return the rates at the first `count` positions."""
        return self._rates[:count] + [self.at(count)] * (count - len(self._rates))

    def learn(self, position: int, accepted: bool, expected: float) -> None:
        """Take in one verified guess whose acceptance was `expected` with that probability."""
        if self.seen[position] >= MAX_SAMPLES:
            self.accepted[position] *= 1 - 1 / MAX_SAMPLES
            self.seen[position] *= 1 - 1 / MAX_SAMPLES
        self.accepted[position] += accepted
        self.seen[position] += 1
        self._surprise = SURPRISE * self._surprise + accepted - expected
        self._variance = SURPRISE * SURPRISE * self._variance + expected * (1 - expected)

    def extend(self, drafted: int) -> None:
        """Make place for `drafted` positions; the positions after them forget a little."""
        missing = drafted - len(self.seen)
        self.accepted += [0.0] * missing
        self.seen += [0.0] * missing
        for at in range(max(drafted, 1), len(self.seen)):
            self.accepted[at] *= 1 - DRIFT
            self.seen[at] *= 1 - DRIFT

    def update(self) -> None:
        """Bring the rates up to date with the evidence."""
        rate, worth, self._rates = self.prior, FEW, []
        for accepted, seen in zip(self.accepted, self.seen, strict=True):
            rate = (accepted + worth * rate) / (seen + worth)
            self._rates.append(rate)
            worth = NEIGHBOUR

    def discount(self, max_samples: float) -> None:
        """Let the evidence count for at most `max_samples`, and deep positions resemble the first ones."""
        self.prior = self.at(0)
        for at, seen in enumerate(self.seen):
            kept = min(1.0, max(max_samples - FEW, 0.0) / max(seen, TINY) / (1 + at))
            self.accepted[at] *= kept
            self.seen[at] *= kept
        self._surprise = self._variance = 0.0
        self.update()

    @property
    def improved(self) -> bool:
        """Return whether more of the last dozen guesses were accepted than expected."""
        return self._surprise > 0

    @property
    def changed(self) -> bool:
        """Return whether the last dozen guesses differ from the expected by more than chance (a z-test)."""
        return abs(self._surprise) > CHANGE * sqrt(self._variance + CALM)


class ClassOdds:
    """How much better or worse guesses of a class are than others at their position, as an odds ratio.

    Logistic regression with the position's log odds as offset and one weight per class, fitted online by
    diagonal Newton steps (as Elo and Glicko ratings are): weight += (accepted - p) / information.
    """

    def __init__(self) -> None:
        self.odds: dict[str, float] = {}
        self.information: dict[str, float] = {}

    def learn(self, name: str, rate: float, accepted: bool, initial: float = 1.0) -> None:
        """Take in a guess of class `name` at a position with that `rate`; `initial` is a new class's odds."""
        odds = self.odds.get(name, initial)
        chance = shifted(rate, odds)
        gained = self.information.get(name, DOUBT) + chance * (1 - chance)
        information = self.information[name] = min(gained, MAX_INFORMATION)
        odds *= exp((accepted - chance) / information)
        self.odds[name] = min(max(odds, 1 / MAX_ODDS), MAX_ODDS)

    def relax(self, name: str) -> None:
        """Move a class that was declined a little towards the others, so that it is tried again."""
        if name in self.odds:
            self.odds[name] **= 1 - DRIFT

    def limit(self, information: float) -> None:
        """Let what is known of each class count for at most so much information."""
        self.information = {name: min(known, information) for name, known in self.information.items()}


def shifted(rate: float, odds: float) -> float:
    """Return the probability whose odds are `odds` times those of `rate`."""
    better = rate * odds
    return better / (1 - rate + better) if better else 0.0


def class_of(source: str, confidence: float, position: int = 0) -> str:
    """Return the class of a guess: its source, its confidence bin, and whether it is a draft's first.

    Later guesses form classes of their own, because most of those that are seen follow confident ones.
    """
    return f"{source}{bisect_right(BINS, confidence)}{LATER if position else ''}"


def expected_tokens(rates: Iterable[float]) -> Iterator[float]:
    """Yield the expected tokens of a step after each further guess with these acceptance rates."""
    tokens = survival = 1.0
    for rate in rates:
        survival *= rate
        tokens += survival
        yield tokens
