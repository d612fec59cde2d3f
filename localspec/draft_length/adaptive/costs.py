"""Running means of the seconds that target passes take, by their width."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

FALL = 0.3  # of the way down to a smaller cost: hardly anything makes a pass faster than it is
RISE = 0.15  # of the way up to a larger one, which other programs may have caused
JUMP = 0.25  # the most that a larger sample counts above the mean: an outlier moves it little
FIRST_JUMP = 1.0  # the same for the first samples, against an estimate from other widths
FEW = 2  # samples from which on a cost is believed
STALE = 50  # passes after which a cost counts for one sample
SLOPE = 0.1  # assumed cost of one more token, as a share of a one-token pass, until it is measured
TICK = 1e-9  # seconds: a clock may see no time pass


class PassCosts:
    """Seconds of passes by width, robust against outliers; unseen widths are interpolated."""

    def __init__(self) -> None:
        self.mean: dict[int, float] = {}
        self.seen: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._passes = 0

    def learn(self, width: int, seconds: float) -> None:
        """Take in the seconds of a pass over `width` tokens."""
        seconds = max(seconds, TICK)
        self._passes += 1
        if self._passes - self._last.get(width, self._passes) > STALE:
            self.seen[width] = 1
        self._last[width] = self._passes
        if width not in self.mean:
            self.mean[width] = self.curve(width)[-1] if 1 in self.mean else seconds
        count = self.seen[width] = self.seen.get(width, 0) + 1
        self.mean[width] = robust_mean(self.mean[width], seconds, count)

    def curve(self, widest: int) -> list[float]:
        """Return the seconds of passes over 1, 2, ... `widest` tokens, interpolated between those seen.

        A wider pass does not cost less, so a cheap one bounds the narrower ones.
        """
        known = sorted(self.mean.items())
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

    def lower_bound(self, width: int) -> float:
        """Return a lower bound for `width` tokens: the cost of the widest narrower pass that is known."""
        narrower = [known for known in self.mean if known < width and (known == 1 or self.seen[known] >= FEW)]
        return self.mean[max(narrower, default=min(self.mean))]


def robust_mean(mean: float, sample: float, count: int) -> float:
    """Return the running mean after its `count`th sample: it falls fast and rises slowly."""
    if sample < mean:
        return mean + max(1 / count, FALL) * (sample - mean)
    jump = FIRST_JUMP if count <= FEW else JUMP
    return mean + max(1 / count, RISE) * min(sample - mean, jump * mean)


def _slope(known: Sequence[tuple[int, float]]) -> float:
    """Return the cost of one more token beyond the widest pass of `known`: the lower of two estimates."""
    (first, low), (last, high) = known[0], known[-1]
    if first == last:
        return SLOPE * low
    before, middle = known[-2]
    return max(min((high - low) / (last - first), (high - middle) / (last - before)), 0.0)
