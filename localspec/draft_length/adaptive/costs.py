"""Costs of passes and guesses: medians of the last ones, so that a stall counts little."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import fmean, median, median_low
from typing import Any

from localspec.draft_length.adaptive.state import rows

RECENT = 9  # passes of a width, or guesses of a source, of which the median is taken
WIDER = 0.1  # of a pass: what one more token in it is assumed to cost until that is measured
WIDEST = 4096  # tokens of the passes that are known from earlier runs
GUESS = 0.25  # of a pass: what a draft model's guess is assumed to cost until that is measured


class Costs:
    """Seconds of target passes by width; by source, those of a guess and of a token that a model has to read.

    `curve` [widest] holds the seconds of passes over 1, 2, ... tokens of a text beside the tokens that other
    texts have in them (`share`), interpolated between the widths that
    were measured and never falling (isotonic regression); passes wider than those cost more as they did so
    far, and in `least` no more at all. The unit is arbitrary until a pass was measured. Every 10 x RECENT
    passes, a width or a source that was not used in that time loses its oldest measurement.
    """

    def __init__(self, widest: int) -> None:
        self.curve = [1 + WIDER * more for more in range(widest)]
        self.least = [1.0] * widest
        self._passes: dict[int, deque[float]] = {}
        self._guesses: dict[str, deque[float]] = {}
        self._readings: dict[str, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._beside = 0
        self._count = 0
        self._used: set[int | str] = set()  # widths and sources since the last ones were forgotten

    def share(self, beside: int) -> None:
        """Let passes have so many tokens of other texts."""
        if beside != self._beside:
            self._beside = beside
            if self._passes:
                self._update()

    @property
    def knows_plain(self) -> bool:
        """Return whether a pass over one token was measured, if only beside fewer than now."""
        return min(self._passes, default=self._beside + 2) <= self._beside + 1

    @property
    def reach(self) -> int:
        """Return the most tokens to try: twice the widest pass, for its cost is a guess until then."""
        widest = max(self._passes, default=self._beside + 1)
        return min(max(2 * widest - self._beside, 1), len(self.curve))

    def guess(self, source: str, lazy: bool = False) -> float:
        """Return the seconds of a guess; an unknown lazy one is that of a draft model, others are free."""
        known = self._guesses.get(source)
        return median_low(known) if known else GUESS * self.curve[0] * lazy

    def reading(self, source: str, behind: int) -> float:
        """Return the seconds that a draft model reads before a guess, `behind` by so many tokens."""
        known = self._readings.get(source)
        return (behind - 1) * (median_low(known) if known else WIDER * self.guess(source, lazy=True))

    def learn_pass(self, width: int, seconds: float, beside: int = 0) -> None:
        """Take in the seconds of a pass over `width` tokens and those `beside` of other texts.

        They are at most those of as many plain passes and one more.
        """
        if self._passes:
            seconds = min(seconds, (width + 1) * self.curve[0])
        width += beside
        self._passes.setdefault(width, deque(maxlen=RECENT)).append(max(seconds, 1e-9))
        self._medians[width] = median(self._passes[width])
        self._used.add(width)
        self._count += 1
        if self._count % (10 * RECENT) == 0:
            self._forget()
        self._update()

    def learn_guesses(self, source: str, seconds: Iterable[float], behind: int) -> None:
        """Take in the seconds of a source's guesses in a draft; it was `behind` before, 0 if it is not lazy.

        What is assumed of a source counts as its first measurement, and the lower of two is believed: engines
        do one-time work at first, and a stall would keep a source out that is measured only when it guesses.
        """
        first, *others = seconds
        self._used.add(source)
        if source not in self._guesses:
            if behind:
                _note(self._readings, source, self.reading(source, 2))
            _note(self._guesses, source, self.guess(source, lazy=behind > 0))
        if behind > 2:  # more than the last draft's end, which any guess reads
            _note(self._guesses, source, fmean(others or [first / (1 + WIDER * (behind - 1))]))
            _note(self._readings, source, max(first - self.guess(source), 0.0) / (behind - 1))
        else:
            _note(self._guesses, source, fmean([first, *others]))

    def learn_asking(self, source: str, seconds: float) -> None:
        """Take in the seconds of a pass over one token that a source used for guesses of the next step.

        What the pass took beyond a plain one is what the source cost, one plain pass at most.
        """
        one = self.curve[0]
        self._used.add(source)
        _note(self._guesses, source, min(max(seconds - one, 0.0), one))

    def _forget(self) -> None:
        """Drop the oldest measurement of each width and source that was not used for a while."""
        kept: list[dict[Any, deque[float]]] = [self._passes, self._guesses, self._readings]
        for known in kept:
            for one in known.keys() - self._used:
                known[one].popleft()
                if not known[one]:
                    del known[one]
        self._medians = {width: median(known) for width, known in self._passes.items()}
        self._used = set()

    def _update(self) -> None:
        known = sorted(self._medians.items())
        width, seconds = known[0]
        if width > 1:
            known.insert(0, (1, seconds / (1 + WIDER * (width - 1))))
        known = _rising(known)
        curve = [known[0][1]]
        for (left, low), (right, high) in pairwise(known):
            slope = (high - low) / (right - left)
            curve += [low + slope * more for more in range(1, right - left + 1)]
        slope = (curve[-1] - curve[0]) / (len(curve) - 1) if len(curve) > 1 else WIDER * curve[0]
        shown = slice(self._beside, self._beside + len(self.curve))
        missing = shown.stop - len(curve)
        self.least = (curve + [curve[-1]] * missing)[shown]
        self.curve = (curve + [curve[-1] + slope * more for more in range(1, missing + 1)])[shown]

    def state(self) -> dict[str, Any]:
        """Return the medians as plain values."""
        return {
            "passes": [[width, self._medians[width]] for width in sorted(self._medians)],
            "guesses": [[source, median_low(known)] for source, known in self._guesses.items()],
            "readings": [[source, median_low(known)] for source, known in self._readings.items()],
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore a `state`; raises ValueError for any other value."""
        for width, seconds in rows(values.get("passes"), int, float):
            if 1 <= width <= WIDEST and seconds > 0:
                self._passes[width], self._medians[width] = deque([seconds], RECENT), seconds
        for name, known in (("guesses", self._guesses), ("readings", self._readings)):
            for source, seconds in rows(values.get(name), str, float):
                _note(known, source, seconds)
        if self._passes:
            self._update()


def _note(known: dict[str, deque[float]], source: str, seconds: float) -> None:
    known.setdefault(source, deque(maxlen=RECENT)).append(seconds)


def _rising(known: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the points with values that never fall: neighbours that did get their mean."""
    pools: list[list[float]] = []
    for _, value in known:
        pools.append([value])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    values = [fmean(pool) for pool in pools for _ in pool]
    return [(width, value) for (width, _), value in zip(known, values, strict=True)]
