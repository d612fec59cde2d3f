from __future__ import annotations

import pytest

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Guess, Step
from localspec.draft_length.confidence import Confidence
from localspec.draft_length.fixed import Fixed
from localspec.draft_length.heuristic import Heuristic


def drafted(draft_length: DraftLengthPolicy, confidences: list[float]) -> int:
    """Return how many guesses of these confidences are asked for."""
    draft: list[Guess] = []
    for confidence in confidences:
        guess = Guess(0, None, confidence)
        if not draft_length.wants_more(draft, guess):
            break
        draft.append(guess)
    return len(draft)


@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_a_fixed_number_whatever_happens(tokens: int) -> None:
    draft_length = Fixed(tokens=tokens)
    for accepted in (0, tokens):
        assert drafted(draft_length, [0.0] * 9) == tokens
        draft_length.learn(Step((1,), tokens, accepted, 1.0, 1.0))
    assert draft_length.reason is None


@pytest.mark.parametrize(
    ("confidences", "expected"),
    [
        pytest.param([0.9, 0.9, 0.9, 0.9], 3, id="sure ones up to the most"),
        pytest.param([0.1, 0.9, 0.9], 1, id="the doubtful one is the last"),
        pytest.param([0.9, 0.4, 0.3, 0.9], 3, id="the least itself is sure enough"),
    ],
)
def test_confidence(confidences: list[float], expected: int) -> None:
    assert drafted(Confidence(min_confidence=0.4, max_tokens=3), confidences) == expected


def test_no_confidence_in_nothing() -> None:
    assert drafted(Confidence(max_tokens=0), [1.0]) == 0


def test_the_heuristic_follows_what_stood() -> None:
    draft_length = Heuristic(start=3, max_tokens=6)
    depths = []
    for stood in (True, True, True, False, False, True, *[False] * 9):
        count = drafted(draft_length, [1.0] * 9)
        depths.append(count)
        draft_length.learn(Step((1,), count, count if stood else 0, 1.0, 1.0))
    assert depths == [3, 5, 6, 6, 5, 4, 6, 5, 4, 3, 2, 1, 1, 1, 1]
    draft_length.learn(Step((1,), 0, 0, 0.0, 1.0))  # nothing was guessed: nothing is learnt
    assert drafted(draft_length, [1.0] * 9) == 1
