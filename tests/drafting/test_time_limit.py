"""Time limits: work that would end too late does not begin."""

from __future__ import annotations

from contextlib import suppress

from localspec.drafting.time_limit import TimeLimit


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_work_fits_while_the_time_lasts() -> None:
    clock = Clock()
    limit = TimeLimit(60, clock=clock)
    assert limit.fits(0)
    assert limit.fits(60)
    assert not limit.fits(61)
    clock.now += 50
    assert (limit.spent, limit.left()) == (50, 10)
    assert limit.fits(10)
    assert not limit.fits(11)
    clock.now += 20
    assert limit.left() == 0
    assert not limit.fits(0)


def test_a_share_of_the_time_ends_earlier() -> None:
    clock = Clock()
    limit = TimeLimit(60, clock=clock)
    clock.now += 20
    assert limit.left(0.5) == 10
    assert limit.fits(10, 0.5)
    assert not limit.fits(11, 0.5)


def test_time_of_an_earlier_run_is_spent() -> None:
    limit = TimeLimit(60, spent=45, clock=Clock())
    assert limit.left() == 15


def test_the_longest_time_of_each_kind_is_remembered() -> None:
    clock = Clock()
    limit = TimeLimit(60, clock=clock)
    for seconds in (2, 5, 3):
        with limit.measured("pair"):
            clock.now += seconds
    with suppress(KeyError), limit.measured("loading"):
        clock.now += 9
        raise KeyError
    assert [limit.longest(kind) for kind in ("pair", "loading", "other")] == [5, 9, 0]


def test_rounds_of_growing_length_overrun_by_less_than_their_growth() -> None:
    clock = Clock()
    limit, cost = TimeLimit(600, clock=clock), 20.0
    while limit.fits(limit.longest("round")):
        with limit.measured("round"):
            clock.now += cost
        cost += 1
    assert 600 - cost <= limit.spent <= 600 * 1.1
