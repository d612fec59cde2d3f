"""What passes cost and which guesses stand, as running values: the arithmetic behind how far to guess."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from math import exp, sqrt

TINY = 1e-9  # samples: keeps a division defined

PRIOR = 0.6  # acceptance of a first guess before any has been seen
LITTLE = 2.0  # samples that a prior, or evidence from before a pause or a change, is worth
LIKE = 8.0  # samples that the share of the position before is worth
PLENTY = 100.0  # samples that evidence is worth at most: what is older fades
DRIFT = 0.02  # how fast an unvisited position forgets and comes near the one before it
SURPRISE = 0.92  # of the surprise so far is left after each guess: about a dozen count
CHANGE = 2.8  # standard deviations of surprise that say that the text has changed
CALM = 0.5  # variance beyond that: one guess against all odds is no change

BINS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)  # of confidence: fine where drafts are mostly found
LATER = "+"  # marks the class of guesses behind a draft's first one
DOUBT = 0.5  # information that "this class is as good as any" is worth
SURE = 8.0  # information that a class holds at most, of about 40 guesses: what is older fades
FAR = 50.0  # the most that a class changes the odds


class Positions:
    """The share of guesses at each position of a draft that stood, given that those before did.

    Each position's own evidence is mixed with the share of the one before, as if that had been seen too:
    deep positions are seldom judged.
    """

    def __init__(self) -> None:
        self.stood: list[float] = []  # of those seen, faded like them
        self.seen: list[float] = []
        self.prior = PRIOR
        self._shares: list[float] = []
        self._surprise = self._variance = 0.0

    def at(self, position: int) -> float:
        """Return the share at `position`, from 0; beyond the last seen one it is that of the last."""
        shares = self._shares
        if position < len(shares):
            return shares[position]
        return shares[-1] if shares else self.prior

    def reaching(self, count: int) -> list[float]:
        """Return the shares at the first `count` positions."""
        return self._shares[:count] + [self.at(count)] * (count - len(self._shares))

    def learn(self, position: int, stood: bool, expected: float) -> None:
        """Take in one guess that was judged, and had been `expected` to stand with that probability."""
        if self.seen[position] >= PLENTY:
            self.stood[position] *= 1 - 1 / PLENTY
            self.seen[position] *= 1 - 1 / PLENTY
        self.stood[position] += stood
        self.seen[position] += 1
        self._surprise = SURPRISE * self._surprise + stood - expected
        self._variance = SURPRISE * SURPRISE * self._variance + expected * (1 - expected)

    def reach(self, drafted: int) -> None:
        """Make room for `drafted` positions; those behind forget a little."""
        missing = drafted - len(self.seen)
        self.stood += [0.0] * missing
        self.seen += [0.0] * missing
        for at in range(max(drafted, 1), len(self.seen)):
            self.stood[at] *= 1 - DRIFT
            self.seen[at] *= 1 - DRIFT

    def settle(self) -> None:
        """Bring the shares up to date with what was seen."""
        share, worth, self._shares = self.prior, LITTLE, []
        for stood, seen in zip(self.stood, self.seen, strict=True):
            share = (stood + worth * share) / (seen + worth)
            self._shares.append(share)
            worth = LIKE

    def doubt(self, most: float) -> None:
        """Let what was seen count no more than `most` samples, and deep positions be like the first ones."""
        self.prior = self.at(0)
        for at, seen in enumerate(self.seen):
            kept = min(1.0, max(most - LITTLE, 0.0) / max(seen, TINY) / (1 + at))
            self.stood[at] *= kept
            self.seen[at] *= kept
        self._surprise = self._variance = 0.0
        self.settle()

    @property
    def better(self) -> bool:
        """Tell whether the last dozen guesses stood more often than expected."""
        return self._surprise > 0

    @property
    def changed(self) -> bool:
        """Tell whether the last dozen guesses stood more or less often than by chance (a z-test)."""
        return abs(self._surprise) > CHANGE * sqrt(self._variance + CALM)


class Classes:
    """How much better or worse guesses of a class do than others at their position, as a ratio of odds.

    Logistic regression with the position's log odds as offset, one weight a class, fitted online by diagonal
    Newton steps (as in Elo and Glicko ratings): weight += (stood - p) / information.
    """

    def __init__(self) -> None:
        self.odds: dict[str, float] = {}
        self.known: dict[str, float] = {}

    def learn(self, name: str, share: float, stood: bool, before: float = 1.0) -> None:
        """Take in a guess of class `name` where `share` stand; a new class had the odds `before`."""
        odds = self.odds.get(name, before)
        chance = shifted(share, odds)
        known = self.known[name] = min(self.known.get(name, DOUBT) + chance * (1 - chance), SURE)
        self.odds[name] = min(max(odds * exp((stood - chance) / known), 1 / FAR), FAR)

    def doubt(self, name: str) -> None:
        """Let a class that was refused come a little nearer to the others, so that it is seen again."""
        if name in self.odds:
            self.odds[name] **= 1 - DRIFT


def shifted(share: float, odds: float) -> float:
    """Return the probability whose odds are `odds` times those of `share`."""
    better = share * odds
    return better / (1 - share + better) if better else 0.0


def class_of(source: str, confidence: float, position: int = 0) -> str:
    """Return the class of a guess: its source, how sure that is, in steps, and whether it is a draft's first.

    Later guesses are a class of their own: of those that are seen, most follow sure ones.
    """
    return f"{source}{bisect_right(BINS, confidence)}{LATER if position else ''}"


def survivals(shares: Iterable[float]) -> Iterator[float]:
    """Yield the expected tokens of a round after each further guess of these shares."""
    tokens = survival = 1.0
    for share in shares:
        survival *= share
        tokens += survival
        yield tokens
