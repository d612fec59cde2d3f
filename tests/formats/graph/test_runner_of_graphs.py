"""The relative cost of graphs is measured well on a machine that slows down and stalls."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.formats.graph.runner import median_pass_seconds


class Busy:
    """A graph on a machine on which every token takes longer than the one before, and some take very long."""

    clock = 0

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def read_context(self) -> None:
        pass

    def time_pass(self, count: int, at: int) -> float:
        Busy.clock += 1
        stall = 5.0 if Busy.clock % 7 == 0 else 1.0
        return (1 + 0.3 * (count - 1)) * self._seconds * stall * (1 + 0.002 * Busy.clock)


def test_graphs_are_timed_in_turns() -> None:
    graphs: list[Any] = [Busy(0.02), Busy(0.01), Busy(0.04)]
    base, *others = median_pass_seconds(*graphs)
    for found, share in zip(others, (0.5, 2.0), strict=True):
        assert found == pytest.approx([share * seconds for seconds in base], rel=0.02)
