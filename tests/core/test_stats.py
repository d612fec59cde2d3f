from __future__ import annotations

from localspec.core.stats import SourceCounts, Stats
from localspec.core.types import Guess, Step


def test_an_empty_tally_divides_nothing() -> None:
    assert Stats().tokens_per_pass == 0


def test_sums_and_positions() -> None:
    stats = Stats()
    for tokens, drafted, accepted in ((3, 4, 2), (1, 0, 0), (2, 2, 1), (3, 2, 2)):
        stats.add(Step(tuple(range(tokens)), drafted, accepted, 0.5, 0.25))
    assert (stats.tokens, stats.passes, stats.drafted, stats.accepted) == (9, 4, 8, 5)
    assert (stats.draft_seconds, stats.target_seconds) == (2.0, 1.0)
    assert stats.drafted_at == [3, 3, 1, 1]
    assert stats.accepted_at == [3, 2, 0, 0]
    assert stats.tokens_per_pass == 2.25


def test_passes_without_a_guess_tell_what_plain_decoding_costs() -> None:
    stats = Stats()
    assert stats.plain_token_seconds is None
    for drafted, seconds in ((0, 0.5), (4, 9.0), (0, 0.25), (0, 7.0), (0, 1.0)):
        stats.add(Step((1,), drafted, 0, 0.0625, seconds))
    assert stats.plain_token_seconds == 0.5625


def test_guesses_are_counted_by_source() -> None:
    stats = Stats()
    draft = tuple(Guess(0, None, 1.0, source) for source in ("copy", "copy", "model", "copy"))
    stats.add(Step((0,) * 4, 4, 3, 1.0, 1.0, draft=draft, costs=(0.125, 0.125, 0.5, 0.25)))
    stats.add(Step((0,), 1, 0, 1.0, 1.0, draft=draft[2:3], costs=(0.5,)))
    assert stats.sources == {"copy": SourceCounts(3, 2, 0.5), "model": SourceCounts(2, 1, 1.0)}
