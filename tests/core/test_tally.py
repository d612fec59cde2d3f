from __future__ import annotations

from localspec.core.contracts import Guess, Round
from localspec.core.tally import Share, Tally


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


def test_guesses_are_counted_by_source() -> None:
    tally = Tally()
    draft = tuple(Guess(0, None, 1.0, source) for source in ("copy", "copy", "model", "copy"))
    tally.add(Round((0,) * 4, 4, 3, 1.0, 1.0, draft=draft, costs=(0.125, 0.125, 0.5, 0.25)))
    tally.add(Round((0,), 1, 0, 1.0, 1.0, draft=draft[2:3], costs=(0.5,)))
    assert tally.sources == {"copy": Share(3, 2, 0.5), "model": Share(2, 1, 1.0)}
