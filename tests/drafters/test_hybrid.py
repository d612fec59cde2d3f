from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from localspec.core.contracts import Drafter, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stats import Stats
from localspec.core.types import Guess, LazyGuess, Tokens, Verdict
from localspec.draft_length.adaptive.policy import Adaptive
from localspec.draft_length.fixed import Fixed
from localspec.drafters.hybrid import CREDIT, READ, HybridDraft
from localspec.engines.toy import Toy

SAMPLER = Sampler(Sampling())
WIDTH = 40
REPEATED = [*range(20), *range(12)]  # 12 comes next, after a match of twelve tokens
NEW = [5, 3, 30, 7, 21, 9]


DRAFT = Toy(vocab_size=WIDTH)


def hybrid(engine: Toy | None = DRAFT, **options: Any) -> HybridDraft:
    draft_model = DraftModel(engine, WIDTH) if engine else None
    drafter = HybridDraft(Cursor(Toy(vocab_size=WIDTH, seed=5).session()), draft_model, **options)
    drafter.begin([])
    return drafter


def drafted(drafter: HybridDraft, text: Tokens, most: int, model: int = 99) -> list[Guess]:
    """Return a draft that takes every free guess and at most `model` offers."""
    draft: list[Guess] = []
    for step in drafter.propose(text, SAMPLER):
        guess = step if isinstance(step, Guess) else step.draw() if model else None
        model -= isinstance(step, LazyGuess)
        if guess is not None:
            draft.append(guess)
        if len(draft) >= most:
            break
    return draft


def settle(drafter: HybridDraft, text: list[int], draft: list[Guess], accepted: int, token: int) -> list[int]:
    """Show the drafter a round, and return the text after it."""
    whole = text + [guess.token for guess in draft]
    drafter.observe(whole, np.zeros((len(draft) + 1, WIDTH), np.float32), Verdict(accepted, token))
    return [*whole[: len(text) + accepted], token]


def sources(draft: list[Guess]) -> list[str]:
    return [guess.source for guess in draft]


def test_a_sure_copy_comes_first_and_the_model_where_there_is_none() -> None:
    assert sources(drafted(hybrid(), REPEATED, 4)) == ["suffix"] * 4
    assert [guess.token for guess in drafted(hybrid(), REPEATED, 4)] == [12, 13, 14, 15]
    assert sources(drafted(hybrid(), NEW, 3)) == ["draft_model"] * 3


def test_a_copy_below_what_is_sure_waits_for_the_model() -> None:
    assert sources(drafted(hybrid(sure=0.9), REPEATED, 2)) == ["draft_model"] * 2
    assert sources(drafted(hybrid(sure=0.9), REPEATED, 2, model=0)) == ["suffix"] * 2


def test_the_model_goes_on_where_the_copy_ends_and_a_copy_where_the_model_ends() -> None:
    drafter = hybrid()
    drafter._model = Told([20, 21, 22, 23])
    text = [20, 21, 22, 23, 33, 34, 35, *NEW]
    draft = drafted(drafter, text, 8)
    assert [guess.token for guess in draft] == [20, 21, 22, 23, 33, 34, 35, 5]
    assert sources(draft) == ["draft_model"] * 4 + ["suffix"] * 4


class Told(Drafter):
    """A draft model that says the same whatever was before."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[LazyGuess]:
        for token in self.tokens:
            yield LazyGuess(lambda token=token: Guess(token))  # type: ignore[misc]


def test_behind_a_refused_model_come_the_targets_own_successors() -> None:
    drafter = hybrid()
    text = settle(drafter, NEW, [], 0, 11)  # 9 -> 11
    text = settle(drafter, text, [], 0, 12)  # 11 -> 12
    draft = drafted(drafter, [*text, 9], 2, model=0)
    assert [(guess.token, guess.source) for guess in draft] == [(11, "recycle"), (12, "recycle")]
    assert sources(drafted(drafter, [*text, 9], 3, model=1))[0] == "draft_model"


def test_nothing_to_guess_is_no_guess() -> None:
    assert drafted(hybrid(None), NEW, 4) == []
    assert drafted(hybrid(), NEW, 4, model=0) == []


def test_confidence_is_what_stood() -> None:
    drafter, text = hybrid(None), list(REPEATED)
    first = drafted(drafter, text, 1)
    assert first[0].confidence == pytest.approx(12 / 16)  # seen once, a match of twelve
    for _ in range(60):
        settle(drafter, text, drafted(drafter, text, 1), 0, 39)
    assert drafted(drafter, text, 1)[0].confidence < 0.2
    for _ in range(200):
        settle(drafter, text, drafted(drafter, text, 1), 1, 39)
    assert drafted(drafter, text, 1)[0].confidence > 0.9


def test_a_model_that_was_left_behind_is_called_when_it_was_missed_for_long() -> None:
    drafter = hybrid()
    text = settle(drafter, NEW, drafted(drafter, NEW, 1), 0, 30)
    missed = 200
    for token in range(missed):  # a long copy, during which the model is not asked
        text = settle(drafter, text, [], 0, token % 7)
    waited = 0
    while "draft_model" not in sources(drafted(drafter, text, 1)):
        text = settle(drafter, text, [], 0, 10 + waited)
        waited += 1
    assert waited == pytest.approx(missed / READ, abs=2)


def test_an_answer_begins_with_credit() -> None:
    drafter = hybrid()
    text = [token % 39 for token in range(0, 7 * READ * CREDIT, 7)]
    assert "draft_model" in sources(drafted(drafter, [*text[: READ * CREDIT - 1], 39], 1))
    assert "draft_model" not in sources(drafted(hybrid(), [*text, *text, 39], 1))


def asked(drafter: HybridDraft) -> Iterator[bool]:
    for step in drafter.propose(NEW, SAMPLER):
        yield isinstance(step, LazyGuess)


def test_a_model_that_is_refused_is_not_offered_again_in_this_round() -> None:
    assert list(asked(hybrid())) == [True]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("engine", [None, Toy(vocab_size=6, noise=0.5)])
def test_text_is_plain_text_whoever_guessed(
    ask: Callable[..., Any], temperature: float, engine: Toy | None
) -> None:
    sampling = Sampling(temperature=temperature)
    for draft_length in (Fixed(tokens=5), Adaptive()):
        target = Cursor(Toy(vocab_size=6).session())
        drafter = HybridDraft(target, DraftModel(engine, 6) if engine else None)
        stats = Stats()
        for prompt in ([1, 2, 3, 1, 2, 3, 1], [4, 4, 1], [1, 2, 3, 1, 2, 3, 1, 5]):
            found = ask(target, drafter, draft_length, prompt=prompt, room=80, sampling=sampling)
            plain = ask(Cursor(Toy(vocab_size=6).session()), prompt=prompt, room=80, sampling=sampling)
            assert found.tokens == plain.tokens
            for last in found.steps:
                stats.add(last)
        assert stats.sources.keys() >= {"suffix", "draft_model" if engine else "recycle"}


def test_a_store_that_is_no_store_is_told(tmp_path: Any) -> None:
    (tmp_path / "answers").write_text("no store")
    drafter = hybrid(None, store=str(tmp_path / "answers"))
    settle(drafter, NEW, [], 0, 1)
    assert drafter.note is not None


def test_a_copy_that_begins_is_judged_apart_from_one_that_goes_on() -> None:
    drafter = hybrid(engine=None)
    for accepted in (4, 0) * 6:
        draft = drafted(drafter, REPEATED, 4)
        settle(drafter, REPEATED, draft, accepted, 16 if accepted else 39)
    first, *further = (guess.confidence for guess in drafted(drafter, REPEATED, 4))
    assert 0.45 < first < 0.7
    assert min(further) > 0.8


def test_guesses_of_others_before_its_own_are_not_taken_for_them() -> None:
    drafter = hybrid(engine=None)
    before = [guess.confidence for guess in drafted(drafter, REPEATED, 2)]
    whole = [*REPEATED[:-2], 33, 34, *(guess.token for guess in drafted(drafter, REPEATED, 2))]
    for _ in range(20):  # two guesses stood that it has not made; of its own, none was judged
        drafted(drafter, REPEATED, 2)
        drafter.observe(whole, np.zeros((5, WIDTH), np.float32), Verdict(1, 30))
    assert [guess.confidence for guess in drafted(drafter, REPEATED, 2)] == before
