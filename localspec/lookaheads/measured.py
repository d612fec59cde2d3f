"""As many guesses as pay, none included, by what passes and guesses have cost and how many stood."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from localspec.core.contracts import Guess, Lookahead, Round
from localspec.plugins import Option

FALL = 0.5  # of the way down to a smaller cost: hardly anything makes a pass faster than it is
RISE = 0.3  # of the way up to a larger one, which may be another program's doing
JUMP = 0.25  # the most that one sample may raise a cost: an outlier moves it little
SLOPE = 0.1  # share of a one-token pass that one more token is taken to cost until it has been seen
PRIOR = 0.6  # acceptance of a first guess before any has been seen
LITTLE = 2  # samples that a prior, or evidence from before a pause, is worth
PLENTY = 15  # samples that evidence is worth at most: what is older fades
DRIFT = 0.02  # how fast an unvisited position forgets and comes near the one before it
STEP = 2  # how far past the deepest guess seen it may go
EXPERIMENT = 32  # rounds of guessing between two trials of another depth: none, then a deeper one
FIRST_WAIT = 4  # rounds until the first probe while guessing does not pay; doubles up to LAST_WAIT
LAST_WAIT = 512
RELIEF = 0.8  # of the wait is left after each round that guessing pays: a few lucky ones do not undo it
TICK = 1e-9  # a clock may see no time pass
PROBE = 2  # rounds of a probe: in the first the drafter reads what it missed


class Measured(Lookahead):
    """Takes the depth with the most expected tokens a second; stops guessing when that is none.

    For a depth d: (1 + sum over i <= d of a_1 ... a_i) / (d * draft + target(d + 1)), with a_i the share of
    guesses at position i that stood given that those before did (Leviathan et al. 2023, section 3, with
    measured numbers in place of one alpha). While guessing does not pay it tries again, ever more rarely.
    The first round of an answer is plain, so the first token does not wait for a draft that must read the
    whole prompt. Its seconds are not counted: what an engine does once, it does there.
    """

    def __init__(
        self,
        *,
        most: Annotated[int, Option("most guesses a round", least=0, most=256)] = 16,
        start: Annotated[int, Option("guesses of the first draft and of a probe", least=1, most=256)] = 2,
    ) -> None:
        self._most = most
        self._start = min(start, most)
        self._passes: dict[int, float] = {}
        self._guess: float | None = None
        self._stood: list[float] = []
        self._seen: list[int] = []
        self._opening = True
        self._asked = False  # in the last round: then the drafter has missed nothing
        self._depth = 0
        self._pays = True
        self._paid = 0
        self._idle = 0
        self._wait = float(FIRST_WAIT)

    def wants_more(self, draft: Sequence[Guess]) -> bool:
        """Tell whether the draft is shorter than this round's depth."""
        return len(draft) < self._depth

    def learn(self, last: Round) -> None:
        """Take in what the pass and the guesses cost and which of them stood, and choose the next depth."""
        if not self._opening:
            self._learn_pass(last.drafted + 1, last.target_seconds)
        if last.drafted:
            self._learn_draft(last)
        self._asked = self._depth > 0
        self._opening = last.finish is not None
        self._depth = 0 if self._opening else self._next()

    @property
    def reason(self) -> str | None:
        """Say what a guess costs and how many stand, when that is why it does not guess."""
        if self._pays or self._guess is None:
            return None
        one, two = self._curve(2)
        return f"a guess costs {(self._guess + two - one) / one:.1f} of a pass and {self._stood[0]:.0%} stand"

    def _next(self) -> int:
        """Return the depth of the round to come."""
        if 1 not in self._passes or self._most == 0:
            return 0
        if self._guess is None:
            return self._start
        best = self._best()
        self._pays = best > 0
        return self._vary(best) if best else self._probe()

    def _vary(self, best: int) -> int:
        """Return `best`, or now and then another depth: what is never tried is never known."""
        self._idle = 0
        self._wait = max(self._wait * RELIEF, FIRST_WAIT)
        self._paid += 1
        if self._paid % EXPERIMENT:
            return best
        return 0 if self._paid % (2 * EXPERIMENT) else min(best + STEP, self._most)

    def _probe(self) -> int:
        """Return 0, or the depth of a probe when the wait is over."""
        self._idle += 1
        if self._idle < self._wait:
            return 0
        if self._idle >= self._wait + PROBE:
            self._idle, self._wait = 0, min(2 * self._wait, LAST_WAIT)
            return 0
        if not self._asked:  # what was seen before the pause may no longer hold
            self._seen = [min(seen, LITTLE) for seen in self._seen]
        return self._start

    def _best(self) -> int:
        """Return the depth of the most expected tokens a second."""
        curve = self._curve(min(self._most, len(self._stood) + STEP) + 1)
        best, highest = 0, 1.0 / curve[0]
        tokens = survival = 1.0
        for depth in range(1, len(curve)):
            survival *= self._stood[min(depth, len(self._stood)) - 1]
            tokens += survival
            rate = tokens / (depth * (self._guess or 0.0) + curve[depth])
            if rate > highest:
                best, highest = depth, rate
        return best

    def _curve(self, widest: int) -> list[float]:
        """Return the seconds of passes over 1, 2, ... `widest` tokens: on lines through the seen ones.

        A wider pass does not cost less, so a cheap one bounds the narrower ones.
        """
        known = sorted(self._passes.items())
        curve = [known[0][1]]
        for (left, low), (right, high) in pairwise(known):
            slope = (high - low) / (right - left)
            curve += [low + slope * step for step in range(1, right - left + 1)]
        slope = _slope(known)
        while len(curve) < widest:
            curve.append(curve[-1] + slope)
        for at in range(len(curve) - 2, -1, -1):
            if curve[at] > curve[at + 1]:
                curve[at] = curve[at + 1]
        return curve[:widest]

    def _learn_pass(self, width: int, seconds: float) -> None:
        if width not in self._passes and 1 in self._passes:
            self._passes[width] = self._curve(width)[-1]
        self._passes[width] = _clamped(self._passes.get(width), max(seconds, TICK))

    def _learn_draft(self, last: Round) -> None:
        if self._asked:
            self._guess = _clamped(self._guess, last.draft_seconds / last.drafted)
        while len(self._stood) < last.drafted:
            self._stood.append(self._stood[-1] if self._stood else PRIOR)
            self._seen.append(LITTLE)
        # the guess after the last that stood was wrong, unless the answer ended there
        judged = min(last.accepted + (last.finish is None), last.drafted)
        for at in range(judged):
            self._seen[at] = min(self._seen[at] + 1, PLENTY)
            self._stood[at] += ((at < last.accepted) - self._stood[at]) / self._seen[at]
        for at in range(last.drafted, len(self._stood)):
            self._stood[at] += DRIFT * (self._stood[at - 1] - self._stood[at])


def _slope(known: Sequence[tuple[int, float]]) -> float:
    """Return what one more token costs beyond the widest pass of `known`: the cheaper of two readings."""
    (first, low), (last, high) = known[0], known[-1]
    if first == last:
        return SLOPE * low
    before, middle = known[-2]
    return max(min((high - low) / (last - first), (high - middle) / (last - before)), 0.0)


def _clamped(mean: float | None, sample: float) -> float:
    """Return the running mean after `sample`: it falls fast and rises slowly."""
    if mean is None:
        return sample
    if sample < mean:
        return mean + FALL * (sample - mean)
    return mean + min(RISE * (sample - mean), JUMP * mean)
