"""How far to draft for a diffusion target, by what passes cost and how many tokens stand."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from localspec.core.types import Step

FRESH = 0.2  # weight of the latest measurement
PROBE, SELDOM = 24, 384  # steps until the way not taken is tried again, twice as many each time it loses
SOON = 3  # such steps while that way was measured once: what happens once, such as recording, is part of it
HOPEFUL = (1.6, 2.0)  # accepted and tried tokens before anything was drafted
KEPT = 0.95  # of those counts from step to step


class Pace(Protocol):
    """Decides how many tokens of a block to draft."""

    @property
    def reason(self) -> str | None:
        """Why it does not draft at present, None while it does."""

    def depth(self, masks: int) -> int:
        """Return how many of the next masks to draft, 0 for none."""

    def learn(self, last: Step, depth: int) -> None:
        """Learn from a step that was asked to draft `depth` tokens."""


class FixedPace:
    """Always drafts up to the same number of tokens."""

    reason = None

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def depth(self, masks: int) -> int:
        """Return that number, or that of the masks if it is smaller."""
        return min(self._tokens, masks)

    def learn(self, last: Step, depth: int) -> None:
        """Learn nothing."""


class MeasuredPace:
    """Drafts as far as it gives the most tokens a second, by measured seconds and acceptance.

    With a share a of accepted tokens, a draft of d tokens gives 1 + a + ... + a^d of them: those that stand,
    and the target's own after them. `stepwise` tells that a draft costs its passes one by one, so that a
    shorter one is cheaper; others are drafted whole, up to a^(d - 1), or not at all. The first draft of an
    answer, or after steps without one, also reads what the draft model has missed, so its seconds say little
    of those that follow: a trial is two drafts in a row.
    """

    def __init__(self, *, stepwise: bool) -> None:
        self._stepwise = stepwise
        self._plain: float | None = None  # seconds of a token without a draft
        self._guess: float | None = None  # seconds of a drafted token
        self._checks: dict[int, float] = {}  # seconds of the target's pass over a draft, by its tokens
        self._accepted, self._tried = HOPEFUL  # tokens, older ones counting less
        self._same = 0  # steps since the other way was taken
        self._measured = {False: 0, True: 0}  # steps without and with a draft
        self._drafts = False
        self._joins, self._joined = True, False  # the next, the last draft reads what it missed, too
        self._until = PROBE  # steps until the next trial of drafts

    @property
    def reason(self) -> str | None:
        """Why it does not draft at present, None while it does."""
        measured = self._guess is not None and not self._drafts
        return "a draft was measured to be slower" if measured else None

    def depth(self, masks: int) -> int:
        """Return the depth that pays best; each way is tried once first, and again from time to time."""
        if self._plain is None:
            return 0
        if self._measured[True] < 2:
            return masks
        rates = self._rates(masks)
        patience = PROBE if self._drafts else self._until
        if self._joined and self._drafts:
            rates.pop(0)
        elif self._same >= (patience if self._measured[not self._drafts] > 1 else SOON):
            rates = {depth: rate for depth, rate in rates.items() if bool(depth) != self._drafts}
        return max(rates, key=lambda depth: rates[depth])

    def _rates(self, masks: int) -> dict[int, float]:
        """Return the tokens a second that are expected of each depth."""
        assert self._plain is not None
        assert self._guess is not None
        depths = range(1, masks + 1) if self._stepwise else [masks]
        rates, stands = {0: 1 / max(self._plain, 1e-9)}, self._accepted / self._tried
        for depth in depths:
            tokens = sum(stands**at for at in range(depth + self._stepwise))
            rates[depth] = tokens / max(depth * self._guess + self._check(depth), 1e-9)
        return rates

    def _check(self, depth: int) -> float:
        """Return the seconds of a pass over a draft, between measured ones: that over none is a plain one."""
        known = self._checks | {0: self._plain or 0.0}
        depths = sorted(known)
        return float(np.interp(depth, depths, [known[each] for each in depths]))

    def learn(self, last: Step, depth: int) -> None:
        """Learn the costs and the acceptance of a step."""
        drafted = bool(last.drafted)
        if self._drafts and not drafted:
            self._until = min(2 * self._until, SELDOM) if self._same < 2 else PROBE
        self._joined, self._joins = drafted and self._joins, not drafted or last.finish is not None
        self._measured[drafted] += 1
        self._same = self._same + 1 if drafted == self._drafts else 0
        self._drafts = drafted
        if not drafted:  # a block is filled in whole, also one that a stop cuts
            self._plain = _mixed(self._plain, last.target_seconds / max(len(last.tokens), last.passes))
            return
        guess = last.draft_seconds / last.drafted
        if not self._joined or self._guess is None or guess < self._guess:
            self._guess = _mixed(self._guess, guess)
        self._checks[last.drafted] = _mixed(self._checks.get(last.drafted), last.target_seconds)
        if last.finish is None:  # a stop cuts what was accepted
            self._accepted = KEPT * self._accepted + last.accepted
            self._tried = KEPT * self._tried + min(last.accepted + 1, last.drafted)


def _mixed(old: float | None, new: float) -> float:
    """Return the mean of measurements, the latest weighing most; one that is far lower stands alone."""
    return new if old is None or 2 * new < old else old + FRESH * (new - old)
