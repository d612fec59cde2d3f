from __future__ import annotations

from localspec.core.contracts import Round
from localspec.core.tally import Tally


def test_an_empty_tally_divides_nothing() -> None:
    assert Tally().tokens_per_pass == 0


def test_sums_and_positions() -> None:
    tally = Tally()
    for tokens, drafted, accepted in ((3, 4, 2), (1, 0, 0), (2, 2, 1), (3, 2, 2)):
        tally.add(Round(tuple(range(tokens)), drafted, accepted, 0.5, 0.25))
    assert (tally.tokens, tally.passes, tally.drafted, tally.accepted) == (9, 4, 8, 5)
    assert (tally.draft_seconds, tally.target_seconds) == (2.0, 1.0)
    assert tally.drafted_at == [3, 3, 1, 1]
    assert tally.accepted_at == [3, 2, 0, 0]
    assert tally.tokens_per_pass == 2.25
