from __future__ import annotations

from collections.abc import Sequence

from localspec.core.types import Guess, Tokens
from localspec.drafting.branches import MOST, Branches

NEXT = {1: [(2, 0.6), (3, 0.3), (4, 0.1)], 2: [(5, 0.9)], 3: [(6, 0.5), (7, 0.4)], 5: [(8, 0.5)]}


def successors(tokens: Tokens) -> Sequence[Guess]:
    return [Guess(token, None, share) for token, share in NEXT.get(tokens[-1], [])]


def grown(branches: Branches, confidence: float) -> list[tuple[tuple[int, ...] | None, int]]:
    return [(guess.after, guess.token) for guess in branches.better(confidence)]


def test_the_likeliest_follow_first_whatever_they_follow() -> None:
    branches = Branches([9, 1], successors)
    branches.step(Guess(2, None, 0.6))  # of the others after 1, 3 has 0.3 and 4 has 0.1
    assert grown(branches, 0.9) == []  # the path's next has 0.6 x 0.9
    assert grown(branches, 0.4) == [((), 3)]
    branches.end()  # 5 has 0.54
    assert grown(branches, 0.0) == [
        ((2,), 5),
        ((2, 5), 8),
        ((3,), 6),
        ((3,), 7),
        ((), 4),
    ]


def test_what_is_unlikely_is_not_offered() -> None:
    branches = Branches([1], successors)
    branches.step(Guess(2, None, 0.05))
    branches.end()
    assert ((), 3) in grown(branches, 0.0)
    branches = Branches([1], successors)
    branches.step(Guess(2, None, 0.01))
    assert [token for _, token in grown(branches, 0.0)] == [3, 6, 7, 4]
    branches.step(Guess(5, None, 1.0))
    branches.end()
    assert grown(branches, 0.0) == []


def test_no_end_of_sure_successors_is_offered() -> None:
    branches = Branches([1], lambda tokens: [Guess(tokens[-1] + 1, None, 1.0)])
    branches.end()
    assert len(grown(branches, 0.0)) == MOST
