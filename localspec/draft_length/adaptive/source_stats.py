"""What one source of guesses is worth: its cost, which of its guesses stand, and when to try it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from localspec.draft_length.adaptive.costs import clamped
from localspec.drafting.acceptance import LATER, Classes, Positions, shifted, survivals

FIRST_WAIT = 4  # rounds until the first probe while guessing does not pay; doubles up to LAST_WAIT
LAST_WAIT = 512
BUDGET = 0.003  # share of the time that probes may lose: where they lose less, they come more often
RELIEF = 0.8  # of the wait is left after each round that guessing pays: a few lucky ones do not undo it
ENOUGH = 16  # rounds of guesses before the waits grow: a bad start may be bad luck
LUCK = 1.5  # standard deviations of it
PROBE = 6  # rounds of a probe at most: the first one without an accepted guess ends it
LONG = 100  # samples of a guess's cost, as if there had been many: outliers are held down from the first
KEPT = 0.95  # of the rate so far is left after each round
RARE = 0.01  # a class that is seen less often than so many times, faded, is forgotten
GONE = 0.8  # of it where the source was refused
STEADY = 8.0  # rounds, faded, from which on the rate so far counts
CHANGED = 2.0  # samples that evidence from before a change is worth
PAUSED = 8.0  # the same before a pause
BEGUN = 1.0  # information on a class that is left when another answer begins
RESTORED = 8.0  # samples that evidence from an earlier run is worth at most

Curve = Sequence[float]  # seconds of passes over 1, 2, ... tokens


class Pace:
    """The guesses of one source: what they cost, which of them stood, what going on is worth.

    `rate` is the tokens a second of rounds that this source leads, which is what a second is worth in them:
    by the renewal reward theorem the policy that takes every guess worth more than its seconds at the best
    rate has the best ratio of expectations (Dinkelbach 1967, On nonlinear fractional programming). `least`
    and `limit` are the guesses of its own that the round to come must and may have.
    """

    def __init__(self) -> None:
        self.spent: float | None = None  # seconds a guess
        self.reading: float | None = None  # seconds a token that it had missed
        self.asked = False  # in the last round: then it has missed nothing
        self.shares = Positions()
        self.classes = Classes()
        self.after = Classes()  # of a guess by the class of the one before: what the next one is like
        self.first: dict[str, float] = {}  # how often its first guess is of which class
        self.expected: list[float] = []  # shares by position, one a width of the curve
        self.rate = 0.0
        self.several = False  # is there more than one confidence
        self.pays = True
        self.least = self.limit = 0
        self._tokens = self._seconds = self._steps = 0.0  # expected ones of the rounds so far, faded
        self._idle = self._left = self._judged = 0
        self._wait = float(FIRST_WAIT)

    @property
    def cost(self) -> float:
        """Seconds a guess, 0 until it is known."""
        return self.spent or 0.0

    def chance(self, share: float, name: str) -> float:
        """Return the chance of a guess of class `name` where `share` stand."""
        return shifted(share, self.classes.odds.get(name, 1.0)) if self.several else share

    def next_chance(self, share: float, name: str) -> float:
        """Return the chance of a guess after one of class `name`: like that one's until it has been seen."""
        if not self.several:
            return share
        odds = self.after.odds.get(name)
        return shifted(share, self.classes.odds.get(name, 1.0) if odds is None else odds)

    def worth(self, curve: Curve, rate: float, count: int, chances: tuple[float, float]) -> float:
        """Return what going on after `count` guesses is worth in seconds, at the best number of further ones.

        `chances` are that of all of them to stand and that of the next one after them; a second is worth
        `rate` tokens.
        """
        best, last = -curve[0], len(curve) - 1
        if count >= last:
            return best
        survival, chance = chances
        gained = survival * chance / rate
        worth, cost = 0.0, self.cost
        for depth in range(count + 1, last + 1):
            worth += gained - cost - curve[depth] + curve[depth - 1]
            if worth > best:
                best = worth
            if worth + gained * (last - depth) < best:
                break
            gained *= self.expected[depth] if depth < len(self.expected) else self.shares.at(depth)
        return best

    def worth_first(self, curve: Curve) -> float:
        """Return what a first guess is worth, if the draft then goes on or ends by that guess's class."""
        share = self.shares.at(0)
        plain = self.worth(curve, self.rate, 0, (1.0, share))
        total = sum(self.first.values())
        if len(self.first) < 2 or len(curve) < 2:
            return plain
        worth = curve[0] - curve[1] - self.cost
        for name, count in self.first.items():
            worth += count / total * self.worth_of(curve, self.rate, 1, self.chance(share, name), name)
        return max(plain, worth)

    def worth_of(self, curve: Curve, rate: float, count: int, survival: float, name: str) -> float:
        """Return what `count` guesses that stand with probability `survival` settle beyond one fewer.

        The last one is of class `name`; the draft then goes on if that pays. In seconds.
        """
        further = self.worth(curve, rate, count, (survival, self.next_chance(self.shares.at(count), name)))
        return survival / rate + max(further, 0.0)

    def weigh(self, curve: Curve, alone: bool) -> None:
        """Bring the best rate up to date, and whether a first guess pays at it.

        Several classes, or sources where this one is not `alone`, may reach more than any fixed depth.
        """
        self.expected = self.shares.reaching(len(curve))
        rate = 1.0 / curve[0]
        for depth, tokens in enumerate(survivals(self.expected[:-1]), 1):
            rate = max(rate, tokens / (depth * self.cost + curve[depth]))
        if self._steps > STEADY and (self.several or not alone):
            rate = max(rate, self._tokens / self._seconds)
        self.rate = rate
        self.pays = self.worth_first(curve) > 0

    def relieve(self) -> None:
        """Take in that guessing pays: the next probe will come sooner."""
        self._idle = 0
        self._wait = max(self._wait * RELIEF, FIRST_WAIT)

    def probe(self, curve: Curve, alone: bool, drafted: bool, accepted: bool) -> None:
        """Take in a round while guessing does not pay, and demand a guess when the wait is over.

        `drafted` and `accepted` tell whether it had guesses in it, and whether one stood; `alone` whether
        there is no other source.
        """
        self._idle += 1
        if self._idle < self._wait:
            return
        if self._idle - 1 < self._wait:  # what was seen before the pause may no longer hold
            self._doubt(PAUSED, alone)
            self._left = PROBE if self._hopeful(curve) else 2  # the second tells what a guess costs by now
            self.least = 1
            return
        if drafted:
            self._left = self._left - 1 if accepted else 0
        if self._left > 0:
            self.least = 1
        else:
            self._idle, self._wait = 0, self._longer(curve)

    def _doubt(self, most: float, alone: bool) -> None:
        if alone:
            self.shares.doubt(most)
        else:
            self.classes.known = {name: min(known, 1.0) for name, known in self.classes.known.items()}

    def _hopeful(self, curve: Curve) -> bool:
        """Tell whether guessing would pay if all guesses stood."""
        costs = enumerate(curve)
        return any(depth + 1 > self.rate * (depth * self.cost + cost) for depth, cost in costs)

    def _longer(self, curve: Curve) -> float:
        """Return the rounds until the next probe: fewer where a probe loses next to nothing."""
        if not self._hopeful(curve):
            return min(4 * self._wait, LAST_WAIT)
        loss = -self.worth_first(curve)
        share, judged = self.shares.at(0), max(self._judged, 1)
        luck = sqrt(share * (1 - share) / judged) / self.rate  # one standard deviation, in seconds
        if judged < ENOUGH and loss < LUCK * luck:
            return self._wait
        loss /= curve[0]
        return min(2 * self._wait, max(loss / BUDGET, FIRST_WAIT), LAST_WAIT)

    def learn_cost(self, seconds: float) -> None:
        """Take in what a guess cost, unless it had to catch up with the text."""
        if self.asked:
            self.spent = seconds if self.spent is None else clamped(self.spent, seconds, LONG)

    def learn_reading(self, seconds: float, behind: int) -> None:
        """Take in what a guess cost before which `behind` tokens were read."""
        one = max(seconds - self.cost, 0.0) / behind
        self.reading = one if self.reading is None else clamped(self.reading, one, LONG)

    def learn_guess(self, at: int, stood: bool, name: str, before: str | None) -> None:
        """Take in whether the guess at `at` of class `name`, after one of class `before`, stood."""
        chance = share = self.shares.at(at)
        new = name not in self.classes.odds
        if self.several or new:
            chance = self.chance(share, name)
            self.classes.learn(name, share, stood)
        if new:
            self._compare()
        if self.several and before is not None:
            self.after.learn(before, share, stood, self.classes.odds.get(before, 1.0))
        self.shares.learn(at, stood, chance)

    def _compare(self) -> None:
        self.several = len({name.rstrip(LATER) for name in self.classes.odds}) > 1

    def learn_first(self, name: str, judged: bool) -> None:
        """Take in the class of this source's first guess of a round, and whether that was judged."""
        self._judged += judged
        self.first = {known: KEPT * count for known, count in self.first.items() if count > RARE}
        self.first[name] = self.first.get(name, 0.0) + 1

    def learn_rate(self, tokens: float, seconds: float) -> None:
        """Take in what a round that it led was expected to settle, and to cost."""
        self._tokens = KEPT * self._tokens + tokens
        self._seconds = KEPT * self._seconds + seconds
        self._steps = KEPT * self._steps + 1

    def refused(self) -> None:
        """Take in that it was not wanted: the rate of rounds that it led is of a text that may be gone."""
        self._tokens *= GONE
        self._seconds *= GONE
        self._steps *= GONE

    def settle(self) -> None:
        """Bring the shares up to date; forget the most of what was seen when the text has changed."""
        self.shares.settle()
        if self.shares.changed:
            self._wait = FIRST_WAIT if self.shares.better else self._wait
            self.shares.doubt(CHANGED)
            self._tokens = self._seconds = self._steps = 0.0

    def begin(self) -> None:
        """Take in that another answer begins: what stood in the last one counts for little in this one."""
        self.classes.known = {name: min(known, BEGUN) for name, known in self.classes.known.items()}

    def state(self) -> dict[str, Any]:
        """Return what was learnt, as plain values for `restore`."""
        return {
            "guess": self.spent,
            "reading": self.reading,
            "prior": self.shares.prior,
            "stood": list(self.shares.stood),
            "seen": list(self.shares.seen),
            "classes": [[name, odds, self.classes.known[name]] for name, odds in self.classes.odds.items()],
            "after": [[name, odds, self.after.known[name]] for name, odds in self.after.odds.items()],
            "first": [[name, count] for name, count in self.first.items()],
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take up a `state`, which counts for few samples, so that what has changed since is soon seen."""
        self.spent, self.reading = values["guess"], values["reading"]
        self.shares.stood = list(values["stood"])
        self.shares.seen = list(values["seen"])
        self.shares.prior = values["prior"]
        self.shares.settle()
        self.shares.doubt(RESTORED)
        for part, found in ((self.classes, values["classes"]), (self.after, values["after"])):
            part.odds = {name: odds for name, odds, _ in found}
            part.known = {name: min(known, RESTORED / 4) for name, _, known in found}
        self.first = dict(values["first"])
        self._compare()
