"""What one graph costs beside another is known on a machine that gets slower and slower, and stalls."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.formats.reading import Scale


class Busy:
    """A graph on a machine on which every token takes longer than the one before, and some take very long."""

    clock = 0

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def begin(self) -> None:
        pass

    def read_on(self, count: int, at: int) -> float:
        Busy.clock += 1
        stall = 5.0 if Busy.clock % 7 == 0 else 1.0
        return (1 + 0.3 * (count - 1)) * self._seconds * stall * (1 + 0.002 * Busy.clock)


def test_graphs_are_weighed_by_turns() -> None:
    base: Any = Busy(0.02)
    scale = Scale(base)
    assert scale.seconds(base) == scale.base_seconds
    for seconds in (0.01, 0.016, 0.04):
        other: Any = Busy(seconds)
        expected = [base_seconds * seconds / 0.02 for base_seconds in scale.base_seconds]
        assert scale.seconds(other) == pytest.approx(expected, rel=0.01)
