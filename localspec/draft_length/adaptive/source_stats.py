"""Statistics of one source of guesses: its costs, its acceptance rates, and when to probe it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from localspec.draft_length.adaptive.costs import robust_mean
from localspec.drafting.acceptance import LATER, ClassOdds, PositionRates, expected_tokens, shifted

FIRST_WAIT = 4  # steps until the first probe while guessing does not pay; doubles up to LAST_WAIT
LAST_WAIT = 512
BUDGET = 0.003  # share of the time that probes may lose: cheaper probes come more often
RELIEF = (
    0.8  # of the wait is left after each step in which guessing pays, so a few lucky ones do not reset it
)
ENOUGH = 16  # steps with guesses before the waits grow: a bad start may be bad luck
LUCK = 1.5  # standard deviations of that luck
PROBE = 6  # steps of a probe at most; the first one without an accepted guess ends it
LONG = 100  # samples of a guess's cost, as if there had been many: outliers count little from the first on
KEPT = 0.95  # of the expected tokens and seconds so far is left after each step
RARE = 0.01  # a class seen less often than this (faded count) is forgotten
DECLINED = 0.8  # decay of the rate's evidence in a step that declined the source
STEADY = 8.0  # minimum effective steps before the observed rate is used
CHANGED = 2.0  # samples that evidence from before a change is worth
PAUSED = 8.0  # samples that evidence from before a pause is worth
NEW_ANSWER = 1.0  # information on a class that is left when an answer begins
RESTORED = 8.0  # samples that evidence from an earlier run is worth at most

Curve = Sequence[float]  # seconds of passes over 1, 2, ... tokens


class SourceStats:
    """Statistics of one source, and what drafting with it is worth.

    `rate` is the expected tokens per second of steps that this source leads, which converts tokens to
    seconds: by the renewal reward theorem, the policy that takes every guess worth more than its seconds at
    the best rate has the best ratio of expectations (Dinkelbach 1967, On nonlinear fractional programming).
    `least` and `limit` are the guesses of this source that the next step must and may have.
    """

    def __init__(self) -> None:
        self.guess_cost: float | None = None  # seconds per guess
        self.prefill_cost: float | None = None  # seconds per token that the draft had missed
        self.asked = False  # in the last step: the draft has then missed nothing
        self.rates = PositionRates()
        self.classes = ClassOdds()
        self.next_classes = ClassOdds()  # of a guess, by the class of the guess before it
        self.first_classes: dict[str, float] = {}  # how often the first guess is of which class, faded
        self.expected: list[float] = []  # acceptance rates by position, one for each width of the curve
        self.rate = 0.0
        self.several = False  # do guesses differ in confidence
        self.pays = True
        self.least = self.limit = 0
        self._tokens = self._seconds = self._steps = 0.0  # expected ones of the steps so far, faded
        self._idle = self._left = self._verified = 0
        self._wait = float(FIRST_WAIT)

    @property
    def cost(self) -> float:
        """Seconds per guess, 0 until known."""
        return self.guess_cost or 0.0

    def chance(self, rate: float, name: str) -> float:
        """Return the acceptance probability of a guess of class `name` at a position with that `rate`."""
        return shifted(rate, self.classes.odds.get(name, 1.0)) if self.several else rate

    def next_chance(self, rate: float, name: str) -> float:
        """Return the acceptance probability of the guess after one of class `name`."""
        if not self.several:
            return rate
        odds = self.next_classes.odds.get(name)
        return shifted(rate, self.classes.odds.get(name, 1.0) if odds is None else odds)

    def worth(self, curve: Curve, rate: float, count: int, chances: tuple[float, float]) -> float:
        """Return the value in seconds of drafting on after `count` guesses, to the best length.

        `chances` are the probability that all guesses so far are accepted, and that the next one is too; a
        second is worth `rate` tokens.
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
            gained *= self.expected[depth] if depth < len(self.expected) else self.rates.at(depth)
        return best

    def worth_of_first(self, curve: Curve) -> float:
        """Return the value in seconds of a first guess, if its class decides whether the draft continues."""
        rate = self.rates.at(0)
        plain = self.worth(curve, self.rate, 0, (1.0, rate))
        total = sum(self.first_classes.values())
        if len(self.first_classes) < 2 or len(curve) < 2:
            return plain
        worth = curve[0] - curve[1] - self.cost
        for name, count in self.first_classes.items():
            worth += count / total * self.worth_of(curve, self.rate, 1, self.chance(rate, name), name)
        return max(plain, worth)

    def worth_of(self, curve: Curve, rate: float, count: int, survival: float, name: str) -> float:
        """Return the value in seconds of the last of `count` guesses; the draft then continues if that pays.

        All of them are accepted with probability `survival`, and the last one is of class `name`.
        """
        chance = self.next_chance(self.rates.at(count), name)
        return survival / rate + max(self.worth(curve, rate, count, (survival, chance)), 0.0)

    def update_rate(self, curve: Curve, alone: bool) -> None:
        """Bring the best rate up to date, and whether a first guess pays at it.

        Several classes, or other sources beside this one (not `alone`), may reach more than any fixed depth.
        """
        self.expected = self.rates.first(len(curve))
        rate = 1.0 / curve[0]
        for depth, tokens in enumerate(expected_tokens(self.expected[:-1]), 1):
            rate = max(rate, tokens / (depth * self.cost + curve[depth]))
        if self._steps > STEADY and (self.several or not alone):
            rate = max(rate, self._tokens / self._seconds)
        self.rate = rate
        self.pays = self.worth_of_first(curve) > 0

    def relieve(self) -> None:
        """Take in that guessing pays: the next probe comes sooner."""
        self._idle = 0
        self._wait = max(self._wait * RELIEF, FIRST_WAIT)

    def probe(self, curve: Curve, alone: bool, drafted: bool, accepted: bool) -> None:
        """Take in a step while guessing does not pay, and demand a guess when the wait is over.

        `drafted` and `accepted` tell whether the step had guesses of this source and whether one was
        accepted; `alone` whether it is the only source.
        """
        self._idle += 1
        if self._idle < self._wait:
            return
        if self._idle - 1 < self._wait:  # evidence from before the pause may no longer hold
            self._discount(PAUSED, alone)
            self._left = PROBE if self._hopeful(curve) else 2  # the second guess tells what one costs by now
            self.least = 1
            return
        if drafted:
            self._left = self._left - 1 if accepted else 0
        if self._left > 0:
            self.least = 1
        else:
            self._idle, self._wait = 0, self._next_wait(curve)

    def _discount(self, max_samples: float, alone: bool) -> None:
        if alone:
            self.rates.discount(max_samples)
        else:
            self.classes.limit(1.0)

    def _hopeful(self, curve: Curve) -> bool:
        """Return whether guessing would pay if all guesses were accepted."""
        costs = enumerate(curve)
        return any(depth + 1 > self.rate * (depth * self.cost + cost) for depth, cost in costs)

    def _next_wait(self, curve: Curve) -> float:
        """Return the steps until the next probe: fewer if a probe loses little."""
        if not self._hopeful(curve):
            return min(4 * self._wait, LAST_WAIT)
        loss = -self.worth_of_first(curve)
        rate, verified = self.rates.at(0), max(self._verified, 1)
        luck = sqrt(rate * (1 - rate) / verified) / self.rate  # one standard deviation, in seconds
        if verified < ENOUGH and loss < LUCK * luck:
            return self._wait
        loss /= curve[0]
        return min(2 * self._wait, max(loss / BUDGET, FIRST_WAIT), LAST_WAIT)

    def learn_cost(self, seconds: float) -> None:
        """Take in the seconds of a guess, unless the draft had to catch up with the text for it."""
        if self.asked:
            cost = self.guess_cost
            self.guess_cost = seconds if cost is None else robust_mean(cost, seconds, LONG)

    def learn_prefill(self, seconds: float, behind: int) -> None:
        """Take in the seconds of a guess for which the draft read `behind` tokens."""
        one, cost = max(seconds - self.cost, 0.0) / behind, self.prefill_cost
        self.prefill_cost = one if cost is None else robust_mean(cost, one, LONG)

    def learn_guess(self, at: int, accepted: bool, name: str, before: str | None) -> None:
        """Take in a verified guess at position `at` of class `name`, after a guess of class `before`."""
        chance = rate = self.rates.at(at)
        new = name not in self.classes.odds
        if self.several or new:
            chance = self.chance(rate, name)
            self.classes.learn(name, rate, accepted)
        if new:
            self._count_bins()
        if self.several and before is not None:
            self.next_classes.learn(before, rate, accepted, self.classes.odds.get(before, 1.0))
        self.rates.learn(at, accepted, chance)

    def _count_bins(self) -> None:
        self.several = len({name.rstrip(LATER) for name in self.classes.odds}) > 1

    def learn_first(self, name: str, verified: bool) -> None:
        """Take in the class of this source's first guess of a step, and whether it was verified."""
        self._verified += verified
        self.first_classes = {
            known: KEPT * count for known, count in self.first_classes.items() if count > RARE
        }
        self.first_classes[name] = self.first_classes.get(name, 0.0) + 1

    def learn_rate(self, tokens: float, seconds: float) -> None:
        """Take in the expected tokens and seconds of a step that this source led."""
        self._tokens = KEPT * self._tokens + tokens
        self._seconds = KEPT * self._seconds + seconds
        self._steps = KEPT * self._steps + 1

    def declined(self) -> None:
        """Take in a step that did not want this source: the measured rate grows stale."""
        self._tokens *= DECLINED
        self._seconds *= DECLINED
        self._steps *= DECLINED

    def update(self) -> None:
        """Bring the acceptance rates up to date; discount the evidence when the text has changed."""
        self.rates.update()
        if self.rates.changed:
            self._wait = FIRST_WAIT if self.rates.improved else self._wait
            self.rates.discount(CHANGED)
            self._tokens = self._seconds = self._steps = 0.0

    def begin(self) -> None:
        """Start an answer: what was accepted in the last one counts for little."""
        self.classes.limit(NEW_ANSWER)

    def state(self) -> dict[str, Any]:
        """Return what was learned, as plain values for `restore`."""
        return {
            "guess_seconds": self.guess_cost,
            "prefill_seconds": self.prefill_cost,
            "prior": self.rates.prior,
            "accepted": list(self.rates.accepted),
            "seen": list(self.rates.seen),
            "classes": _rows_of(self.classes),
            "next_classes": _rows_of(self.next_classes),
            "first_classes": [[name, count] for name, count in self.first_classes.items()],
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore a `state`, which counts for few samples, so that a change since then shows soon."""
        self.guess_cost, self.prefill_cost = values["guess_seconds"], values["prefill_seconds"]
        self.rates.accepted = list(values["accepted"])
        self.rates.seen = list(values["seen"])
        self.rates.prior = values["prior"]
        self.rates.update()
        self.rates.discount(RESTORED)
        for classes, rows in ((self.classes, values["classes"]), (self.next_classes, values["next_classes"])):
            classes.odds = {name: odds for name, odds, _ in rows}
            classes.information = {name: known for name, _, known in rows}
            classes.limit(RESTORED / 4)
        self.first_classes = dict(values["first_classes"])
        self._count_bins()


def _rows_of(classes: ClassOdds) -> list[list[Any]]:
    return [[name, odds, classes.information[name]] for name, odds in classes.odds.items()]
