"""As many guesses as pay, none included, by what passes and guesses have cost and how many stood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Annotated, Any

from localspec.core.contracts import Guess, Lookahead, Round
from localspec.core.pacing import (
    LITTLE,
    Classes,
    Costs,
    Positions,
    clamped,
    class_of,
    shifted,
    survivals,
)
from localspec.core.remembered import LARGE, VERSION, fit
from localspec.plugins import Option

STEP = 2  # how far past the deepest guess seen it may go
UNKNOWN = 5  # rounds of guessing between two trials of a width that may be better than all known ones
EXPERIMENT = 32  # the same when none may be; doubles up to LAST_EXPERIMENT
LAST_EXPERIMENT = 128
BETTER = 1.05  # times the rate so far must be possible for a trial
FIRST_WAIT = 4  # rounds until the first probe while guessing does not pay; doubles up to LAST_WAIT
LAST_WAIT = 512
BUDGET = 0.003  # share of the time that probes may lose: where they lose less, they come more often
RELIEF = 0.8  # of the wait is left after each round that guessing pays: a few lucky ones do not undo it
ENOUGH = 16  # rounds of guesses before the waits grow: a bad start may be bad luck
LUCK = 1.5  # standard deviations of it
PROBE = 6  # rounds of a probe at most: the first one without an accepted guess ends it
CHEAP = 0.02  # of a pass: such a guess is a copy, and delays no first token
LONG = 100  # samples of a guess's cost, as if there had been many: outliers are held down from the first
KEPT = 0.95  # of the rate so far is left after each round
RARE = 0.01  # a class that is seen less often than so many times, faded, is forgotten
STEADY = 8.0  # rounds, faded, from which on the rate so far counts
CHANGED = 2.0  # samples that evidence from before a change is worth
PAUSED = 8.0  # the same before a pause
RESTORED = 8.0  # samples that evidence from an earlier run is worth at most


class Measured(Lookahead):
    """Takes the depth with the most expected tokens a second; stops guessing when that is none.

    For a depth d: (1 + sum over i <= d of a_1 ... a_i) / (d * draft + target(d + 1)), with a_i the share of
    guesses at position i that stood given that those before did (Leviathan et al. 2023, section 3, with
    measured numbers in place of one alpha). A doubtful guess ends the draft early, a sure one prolongs it:
    at the best rate r, one more guess pays when its expected tokens / r exceed its seconds. That policy has
    the best ratio of expectations (Dinkelbach 1967, On nonlinear fractional programming), and by the renewal
    reward theorem the ratio is tokens a second.

    While guessing does not pay it tries again, ever more rarely. The first round of an answer is plain unless
    guesses are as good as free, so the first token does not wait for a draft that must read the whole prompt.
    Its seconds are not counted: what an engine does once, it does there.
    """

    def __init__(
        self,
        *,
        most: Annotated[int, Option("most guesses a round", least=0, most=256)] = 16,
        start: Annotated[int, Option("guesses of the first draft and of a probe", least=1, most=256)] = 2,
    ) -> None:
        self._most = most
        self._start = min(start, most)
        self._costs = Costs()
        self._guess: float | None = None
        self._shares = Positions()
        self._classes = Classes()
        self._after = Classes()  # of a guess by the class of the one before: what the next one is like
        self._several = False  # is there more than one class
        self._first: dict[str, float] = {}  # how often a first guess is of which class
        self._tokens = self._seconds = self._rounds = 0.0  # expected ones of the rounds so far, faded
        self._curve: list[float] = []
        self._expected: list[float] = []  # shares by position, one a width of the curve
        self._rate = 0.0  # tokens a second: what a second is worth
        self._names: list[str] = []  # classes of this round's guesses
        self._survival: list[float] = [1.0]  # chance that this round's guesses up to here all stand
        self._least = self._limit = 0
        self._opening = True
        self._asked = False  # in the last round: then the drafter has missed nothing
        self._pays = True
        self._paid = 0
        self._pause = EXPERIMENT
        self._turn = 0
        self._idle = 0
        self._left = 0
        self._wait = float(FIRST_WAIT)
        self._judged = 0

    def wants_more(self, draft: Sequence[Guess]) -> bool:
        """Tell whether the expected tokens of going on are worth more than its seconds."""
        count = len(draft)
        if count < len(self._names):
            self._names, self._survival = [], [1.0]
        for guess in draft[len(self._names) :]:
            self._see(guess)
        if count < self._least:
            return True
        if count >= self._limit:
            return False
        name = self._names[-1] if self._names else None
        return self._worth(count, self._survival[-1], name, enough=0.0) > 0

    def learn(self, last: Round) -> None:
        """Take in what the pass and the guesses cost and which of them stood, and choose the next depth."""
        if not self._opening:
            self._costs.learn(last.drafted + 1, last.target_seconds)
        if last.drafted:
            self._learn_draft(last)
        self._asked = self._limit > 0 and not self._opening
        self._opening = last.finish is not None
        self._plan(last)
        self._names, self._survival = [], [1.0]

    @property
    def reason(self) -> str | None:
        """Say what a guess costs and how many stand, when that is why it does not guess."""
        if self._pays or self._guess is None:
            return None
        one, two = self._costs.curve(2)
        share = self._shares.at(0)
        return f"a guess costs {(self._guess + two - one) / one:.1f} of a pass and {share:.0%} stand"

    def state(self) -> dict[str, Any]:
        """Return what was learnt, as plain values for `restore`."""
        return {
            "version": VERSION,
            "passes": [[width, self._costs.mean[width]] for width in sorted(self._costs.mean)],
            "guess": self._guess,
            "prior": self._shares.prior,
            "stood": list(self._shares.stood),
            "seen": list(self._shares.seen),
            "classes": [[name, odds, self._classes.known[name]] for name, odds in self._classes.odds.items()],
            "after": [[name, odds, self._after.known[name]] for name, odds in self._after.odds.items()],
            "first": [[name, count] for name, count in self._first.items()],
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take up a `state`. What is malformed or of another version changes nothing.

        It counts for few samples, so that what has changed since is soon seen.
        """
        if fit(values):
            self._take(values)
            self._plan(None)

    def _take(self, values: Mapping[str, Any]) -> None:
        self._costs.mean = {width: float(seconds) for width, seconds in values["passes"]}
        self._costs.seen = dict.fromkeys(self._costs.mean, 2)
        self._guess = values["guess"]
        self._shares.stood = list(values["stood"])
        self._shares.seen = list(values["seen"])
        self._shares.prior = values["prior"]
        self._shares.settle()
        self._shares.doubt(RESTORED)
        for part, found in ((self._classes, values["classes"]), (self._after, values["after"])):
            part.odds = {name: odds for name, odds, _ in found}
            part.known = {name: min(known, RESTORED / 4) for name, _, known in found}
        self._first = dict(values["first"])

    def _see(self, guess: Guess) -> None:
        """Take in a new guess of this round."""
        name = class_of(guess.source, guess.confidence)
        share = self._shares.at(len(self._names))
        self._survival.append(self._survival[-1] * self._chance(share, name))
        self._names.append(name)

    def _chance(self, share: float, name: str) -> float:
        """Return the chance of a guess of class `name` where `share` stand."""
        return shifted(share, self._classes.odds.get(name, 1.0)) if self._several else share

    def _next_chance(self, share: float, name: str) -> float:
        """Return the chance of a guess after one of class `name`: like that one's until it has been seen."""
        if not self._several:
            return share
        odds = self._after.odds.get(name)
        return shifted(share, self._classes.odds.get(name, 1.0) if odds is None else odds)

    def _worth(self, count: int, survival: float, name: str | None, enough: float = LARGE) -> float:
        """Return what going on after `count` guesses is worth in seconds, at the best number of further ones.

        `survival` is the chance that all of them stand, `name` the class of the last one. More than `enough`
        need not be the best.
        """
        curve, shares, cost = self._curve, self._expected, self._guess or 0.0
        last = min(self._limit, len(curve) - 1)
        best = -curve[0]
        if count >= last:
            return best
        share = shares[count]
        gained = survival * (share if name is None else self._next_chance(share, name)) / self._rate
        worth = 0.0
        for depth in range(count + 1, last + 1):
            worth += gained - cost - curve[depth] + curve[depth - 1]
            if worth > best:
                best = worth
            if best > enough or worth + gained * (last - depth) < best:
                break
            gained *= shares[depth]
        return best

    def _worth_first(self) -> float:
        """Return what a first guess is worth, if the draft then goes on or ends by that guess's class."""
        plain = self._worth(0, 1.0, None)
        total = sum(self._first.values())
        if len(self._first) < 2:
            return plain
        share = self._shares.at(0)
        worth = self._curve[0] - self._curve[1] - (self._guess or 0.0)
        for name, count in self._first.items():
            chance = self._chance(share, name)
            worth += count / total * (chance / self._rate + max(self._worth(1, chance, name), 0.0))
        return max(plain, worth)

    def _plan(self, last: Round | None) -> None:
        """Choose the least and the most guesses of the round to come."""
        self._several = len(self._classes.odds) > 1
        self._least = self._limit = 0
        if 1 not in self._costs.mean or self._most == 0:
            return
        if self._guess is None:
            self._least = self._limit = 0 if self._opening else self._start
            return
        self._weigh()
        if self._opening and self._guess > CHEAP * self._curve[0]:
            return
        self._limit = self._most
        self._pays = self._worth_first() > 0
        self._least = 1
        if not self._pays:
            self._probe(last)
        elif not self._opening:
            self._vary()

    def _weigh(self) -> None:
        """Bring the costs by width and the best rate up to date."""
        shares, cost = self._shares, self._guess or 0.0
        curve = self._curve = self._costs.curve(min(self._most, len(shares.stood) + STEP) + 1)
        self._expected = shares.reaching(len(curve))
        rate = 1.0 / curve[0]
        for depth, tokens in enumerate(survivals(self._expected[:-1]), 1):
            rate = max(rate, tokens / (depth * cost + curve[depth]))
        if self._rounds > STEADY and self._several:
            rate = max(rate, self._tokens / self._seconds)
        self._rate = rate

    def _vary(self) -> None:
        """Now and then try another depth: what is never tried is never known."""
        self._idle = 0
        self._wait = max(self._wait * RELIEF, FIRST_WAIT)
        self._paid += 1
        if self._paid % UNKNOWN == 0:
            depth = self._promising()
            if depth:
                self._least = self._limit = depth
                return
        if self._paid >= self._pause:
            self._paid, self._pause = 0, min(2 * self._pause, LAST_EXPERIMENT)
            self._turn += 1
            deeper = min(len(self._names) + STEP, self._most)
            self._least = self._limit = 0 if self._turn % 2 else deeper

    def _promising(self) -> int:
        """Return a depth that would be the best one if its pass cost as little as it may, or 0."""
        best, highest = 0, self._rate * BETTER
        tokens = [1.0, *survivals(self._shares.reaching(self._most))]
        width = 2
        while width // 2 <= self._most:
            depth = min(width - 1, self._most)
            if self._costs.seen.get(depth + 1, 0) < LITTLE:
                seconds = self._costs.least(depth + 1) + depth * (self._guess or 0.0)
                if tokens[depth] / seconds > highest:
                    best, highest = depth, tokens[depth] / seconds
            width *= 2
        return best

    def _probe(self, last: Round | None) -> None:
        """Guess nothing, or once when the wait is over."""
        self._idle += 1
        if self._idle < self._wait:
            self._least = self._limit = 0
            return
        if self._idle - 1 < self._wait:  # what was seen before the pause may no longer hold
            self._shares.doubt(PAUSED)
            self._left = PROBE if self._hopeful() else 2  # the second tells what a guess costs by now
            return
        if last is not None and last.drafted:
            self._left = self._left - 1 if last.accepted else 0
        if self._left <= 0:
            self._idle, self._wait = 0, self._longer()
            self._least = self._limit = 0

    def _hopeful(self) -> bool:
        """Tell whether guessing would pay if all guesses stood."""
        costs = enumerate(self._curve)
        return any(depth + 1 > self._rate * (depth * (self._guess or 0.0) + cost) for depth, cost in costs)

    def _longer(self) -> float:
        """Return the rounds until the next probe: fewer where a probe loses next to nothing."""
        if not self._hopeful():
            return min(4 * self._wait, LAST_WAIT)
        loss = -self._worth_first()
        share, judged = self._shares.at(0), max(self._judged, 1)
        luck = sqrt(share * (1 - share) / judged) / self._rate  # one standard deviation, in seconds
        if judged < ENOUGH and loss < LUCK * luck:
            return self._wait
        loss /= self._curve[0]
        return min(2 * self._wait, max(loss / BUDGET, FIRST_WAIT), LAST_WAIT)

    def _learn_draft(self, last: Round) -> None:
        if self._asked:
            guess = last.draft_seconds / last.drafted
            self._guess = guess if self._guess is None else clamped(self._guess, guess, LONG)
        self._shares.reach(last.drafted)
        if self._least < self._limit and self._curve:
            self._learn_rate(last.drafted)
        # the guess after the last that stood was wrong, unless the answer ended there
        judged = min(last.accepted + (last.finish is None), last.drafted)
        self._judged += judged > 0
        for at in range(judged):
            self._learn_guess(at, at < last.accepted)
        self._shares.settle()
        if self._names:
            self._first = {name: KEPT * count for name, count in self._first.items() if count > RARE}
            self._first[self._names[0]] = self._first.get(self._names[0], 0.0) + 1
        if self._shares.changed:
            self._wait = FIRST_WAIT if self._shares.better else self._wait
            self._shares.doubt(CHANGED)
            self._tokens = self._seconds = self._rounds = 0.0

    def _learn_guess(self, at: int, stood: bool) -> None:
        chance = share = self._shares.at(at)
        name = self._names[at] if at < len(self._names) else None
        if name is not None and (self._several or name not in self._classes.odds):
            chance = self._chance(share, name)
            self._classes.learn(name, share, stood)
        if self._several and name is not None and at:
            before = self._names[at - 1]
            self._after.learn(before, share, stood, self._classes.odds.get(before, 1.0))
        self._shares.learn(at, stood, chance)

    def _learn_rate(self, drafted: int) -> None:
        """Take in what this round was expected to settle, and to cost."""
        if drafted >= len(self._curve):
            return
        self._tokens = KEPT * self._tokens + sum(self._survival[: drafted + 1])
        self._seconds = KEPT * self._seconds + drafted * (self._guess or 0.0) + self._curve[drafted]
        self._rounds = KEPT * self._rounds + 1
