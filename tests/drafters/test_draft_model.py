from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from localspec.core.contracts import DraftModel
from localspec.core.cursor import Cursor
from localspec.core.decode import drawn
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Guess
from localspec.drafters.draft_model import ModelDraft
from localspec.engines.toy import Toy

TARGET = Cursor(Toy().session())
TEXTS = ([1, 2, 3], [1, 2, 3, 9], [1, 2], [5], [1, 2, 3, 9, 9, 9], [1, 2, 3])


def guesses(drafter: ModelDraft, text: list[int], sampler: Sampler, count: int = 5) -> list[Guess]:
    steps = islice(drafter.propose(text, sampler), count)
    return [guess for guess in map(drawn, steps) if guess is not None]


@pytest.mark.parametrize("block_size", [1, 8, 0])
def test_guesses_are_the_greedy_text_of_the_draft_after_any_edit(block_size: int) -> None:
    drafter = ModelDraft(TARGET, DraftModel(Toy(seed=3, block_size=block_size)), name="toy")
    for text in TEXTS:
        told = [*text]
        for _ in range(5):
            told.append(int(Toy(seed=3).session().forward(told, 1)[0].argmax()))
        found = guesses(drafter, text, Sampler(Sampling()))
        assert [guess.token for guess in found] == told[len(text) :]
        assert all(guess.probs is None for guess in found)


def test_sampled_guesses_keep_what_they_were_drawn_from() -> None:
    draft = Toy(seed=3)
    sampler = Sampler(Sampling(temperature=1.0, top_k=4), coupled=False)
    text = [1, 2, 3]
    for guess in guesses(ModelDraft(TARGET, DraftModel(draft), name="toy"), text, sampler):
        expected = sampler.distribution(draft.session().forward(text, 1)[0], text)
        assert guess.probs is not None
        assert np.array_equal(guess.probs.tokens, expected.tokens)
        assert np.array_equal(guess.probs.probs, expected.probs)
        text.append(guess.token)


def test_it_guesses_as_far_as_its_own_context_goes() -> None:
    drafter = ModelDraft(TARGET, DraftModel(Toy(context=10)), name="toy")
    sampler = Sampler(Sampling())
    assert len(guesses(drafter, [1] * 8, sampler, 100)) == 3
    assert guesses(drafter, [1] * 11, sampler) == []
    assert len(guesses(drafter, [1] * 10, sampler)) == 1


def test_offers_say_what_must_be_read_for_them() -> None:
    drafter, sampler = ModelDraft(TARGET, DraftModel(Toy(seed=3)), name="toy"), Sampler(Sampling())

    def behind(text: list[int]) -> list[int]:
        found = []
        for step in islice(drafter.propose(text, sampler), 3):
            found.append(step.behind)
            drawn(step)
        return found

    assert behind([1] * 20) == [20, 1, 1]
    said = guesses(drafter, [1] * 20, sampler, 2)
    assert behind([*[1] * 20, said[0].token, 5, 6]) == [2, 1, 1]
    assert behind([2] * 9) == [9, 1, 1]
