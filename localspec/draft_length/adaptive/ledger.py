"""A budget of seconds that drafting may lose against plain decoding."""

from __future__ import annotations

EPSILON = 0.02  # share of the time that may be lost


class Ledger:
    """Seconds that were lost of all seconds; EPSILON of those and one pass may be.

    Conservative bandits (Wu et al. 2016; Kazerouni et al. 2017): what is not known to pay is tried within a
    budget.
    """

    def __init__(self) -> None:
        self.lost = self.seconds = 0.0

    def allows(self, price: float, one: float) -> bool:
        """Return whether `price` seconds may be lost; `one` is the seconds of a plain pass."""
        return self.lost + price <= EPSILON * self.seconds + one

    def enter(self, lost: float, seconds: float) -> None:
        """Enter a step of so many seconds, of which some were lost, or gained if negative."""
        self.lost += lost
        self.seconds += seconds
