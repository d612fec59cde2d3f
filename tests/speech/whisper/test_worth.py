"""Whether a draft is worth its time."""

from __future__ import annotations

import pytest

from localspec.core.types import Step
from localspec.speech.whisper.worth import DraftSeconds, Worth


def steps(count: int, seconds: float, tokens: int = 1, drafted: int = 0) -> list[Step]:
    return [Step((1,) * tokens, drafted, tokens - 1, 0.0, seconds) for _ in range(count)]


def test_a_draft_is_wanted_where_it_saves_more_than_its_encoder_takes() -> None:
    # a plain token takes 10 ms, a draft saves 60 % of it; its pass takes 4 ms; 4.5 tokens a second
    worth = Worth(encoder=0.01, token=0.004, plain=0.01)
    assert worth.gain(10, 2) == pytest.approx(10 * (4.5 * 0.004 - 0.01))
    assert worth.gain(10, 4) == pytest.approx(10 * (4.5 * 0.005 - 0.01))
    assert worth.wanted(10, 2)
    assert not Worth(encoder=0.03, token=0.004, plain=0.01).wanted(10, 2)


def test_costs_are_learned_from_what_windows_took() -> None:
    worth = Worth(encoder=0.01, token=0.002, plain=0.01)
    for _ in range(30):
        worth.learn(10, 3, steps(10, 0.03, tokens=4, drafted=3), DraftSeconds(0.4, 0.2))
        worth.learn(10, 3, steps(40, 0.02), None)
    assert worth.plain == pytest.approx(0.02, rel=0.01)
    assert worth.rate == pytest.approx(4, rel=0.01)
    assert worth.encoder == pytest.approx(0.04, rel=0.01)
    assert worth.token == pytest.approx(0.015, rel=0.01)  # a pass gives three parts a token
    assert worth.saved == pytest.approx(1 - 0.0075 / 0.02, rel=0.01)


def test_a_draft_that_loses_is_tried_within_a_budget_alone() -> None:
    worth = Worth(encoder=0.01, token=0.002, plain=0.01)
    drafted, total = 0, 2000
    for _ in range(total):
        if worth.wanted(10, 1):
            drafted += 1
            worth.learn(10, 1, steps(45, 0.011, drafted=3), DraftSeconds(0.1, 0.1))
        else:
            worth.learn(10, 1, steps(45, 0.01), None)
    lost = drafted * (45 * 0.001 + 0.2)
    assert drafted > 1
    assert lost < 0.02 * total * 0.45
