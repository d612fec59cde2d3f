from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Logits, Tokens, Verdict
from localspec.draft_length.fixed import Fixed
from localspec.drafters.recycle import DOUBT, RecycleDraft
from localspec.engines.toy import Toy

TARGET = Cursor(Toy().session())
SAMPLER = Sampler(Sampling())


def rows(*likeliest: int) -> Logits:
    """Return rows of ten tokens that are highest at `likeliest`."""
    return np.eye(10, dtype=np.float32)[list(likeliest)]


def guessed(drafter: RecycleDraft, text: Tokens, count: int = 6) -> list[int]:
    path = (guess for guess in drafter.propose(text, SAMPLER) if guess.after is None)
    return [guess.token for guess in islice(path, count)]


def observe(drafter: RecycleDraft, tokens: list[int], checked: Logits) -> None:
    """Show a round whose verdict is the greedy one."""
    drafted = tokens[len(tokens) - len(checked) + 1 :]
    likeliest = checked.argmax(axis=1).tolist()
    accepted = next((at for at, token in enumerate(drafted) if token != likeliest[at]), len(drafted))
    drafter.observe(tokens, checked, Verdict(accepted, likeliest[accepted]))


def sure(drafter: RecycleDraft, token: int) -> float:
    return next(drafter.propose([token], SAMPLER)).confidence


def test_nothing_is_guessed_before_a_row_was_seen() -> None:
    drafter = RecycleDraft(TARGET)
    assert guessed(drafter, []) == []
    assert guessed(drafter, [1, 2]) == []


def test_a_chain_follows_the_likeliest_of_each_token() -> None:
    drafter = RecycleDraft(TARGET)
    observe(drafter, [7, 7, 1, 2, 3], rows(2, 3, 4))
    assert guessed(drafter, [9, 1]) == [2, 3, 4]
    assert guessed(drafter, [4]) == []
    observe(drafter, [4], rows(1))
    assert guessed(drafter, [9, 1]) == [2, 3, 4, 1, 2, 3]


def test_rows_of_rejected_guesses_are_kept_and_the_latest_row_counts() -> None:
    drafter = RecycleDraft(TARGET)
    observe(drafter, [1, 8, 9], rows(2, 5, 6))  # the target said 2 where 8 was guessed
    assert guessed(drafter, [8]) == [5]
    assert guessed(drafter, [9]) == [6]
    observe(drafter, [1], rows(3))
    assert guessed(drafter, [1]) == [3]


def test_rows_are_not_held() -> None:
    drafter = RecycleDraft(TARGET)
    view = rows(2)
    observe(drafter, [1], view)
    view[:] = rows(5)
    assert guessed(drafter, [1]) == [2]


def test_confidence_grows_with_repetitions_in_a_row() -> None:
    drafter = RecycleDraft(TARGET)
    for count in range(1, 12):
        observe(drafter, [1], rows(2))
        seen = min(count, 8)
        assert sure(drafter, 1) == pytest.approx(seen / (seen + DOUBT))
    observe(drafter, [1], rows(3))
    assert sure(drafter, 1) == pytest.approx(1 / (1 + DOUBT))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_plain_text_and_some_guesses_stand(ask: Callable[..., Any], temperature: float) -> None:
    toy = Toy(vocab_size=6)
    sampling = Sampling(temperature=temperature)
    target = Cursor(toy.session())
    drafter = RecycleDraft(target)
    for prompt in ([1, 2, 3], [1, 2, 3], [4]):
        found = ask(target, drafter, Fixed(tokens=4), prompt=prompt, room=60, sampling=sampling)
        assert found.tokens == ask(Cursor(toy.session()), prompt=prompt, room=60, sampling=sampling).tokens
        assert sum(last.accepted for last in found.steps) > 0
