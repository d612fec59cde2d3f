from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from localspec.core.contracts import Drafter, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stats import Stats
from localspec.core.types import Distribution, Guess, LazyGuess, Tokens, Verdict
from localspec.draft_length.adaptive.policy import Adaptive
from localspec.draft_length.fixed import Fixed
from localspec.drafters.hybrid import HybridDraft
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
        guess = step if isinstance(step, Guess) else step.draw() if model > 0 else None
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


def test_the_model_is_offered_with_the_token_it_would_replace() -> None:
    first, second, *_ = islice(hybrid().propose(REPEATED, SAMPLER), 2)
    assert isinstance(first, LazyGuess)
    assert (first.source, first.behind) == ("draft_model", len(REPEATED))
    assert first.instead == second
    assert isinstance(second, Guess)
    assert (second.token, second.source) == (12, "suffix")


def test_copies_follow_where_the_model_is_declined() -> None:
    assert sources(drafted(hybrid(), REPEATED, 4)) == ["draft_model"] * 4
    declined = drafted(hybrid(), REPEATED, 4, model=0)
    assert [guess.token for guess in declined] == [12, 13, 14, 15]
    assert sources(declined) == ["suffix"] * 4
    assert sources(drafted(hybrid(), REPEATED, 4, model=2)) == ["draft_model"] * 2 + ["suffix"] * 2


def test_the_model_is_offered_again_behind_a_copy_and_reads_it_first() -> None:
    drafter = hybrid()
    offers, wanted = [], [True, False, False, True]
    candidates = drafter.propose(REPEATED, SAMPLER)
    for want in wanted:
        offer = next(candidates)
        assert isinstance(offer, LazyGuess)
        offers.append(offer.behind)
        if want:
            assert offer.draw()
        else:
            assert isinstance(next(candidates), Guess)
    assert offers == [len(REPEATED), 1, 2, 3]


def test_the_model_goes_on_where_the_copy_ends_and_a_copy_where_the_model_ends() -> None:
    drafter = hybrid()
    drafter._model = Told([20, 21, 22, 23])
    text = [20, 21, 22, 23, 33, 34, 35, *NEW]
    draft = drafted(drafter, text, 8)
    assert [guess.token for guess in draft] == [20, 21, 22, 23, 33, 34, 35, 5]
    assert sources(draft) == ["draft_model"] * 4 + ["suffix"] * 4


def test_free_guesses_of_the_model_come_at_once_unless_another_came_between() -> None:
    drafter = hybrid()
    drafter._model = Told([12, 20], free=[22])
    assert [guess.token for guess in drafted(drafter, REPEATED, 3)] == [12, 20, 22]
    draft = drafted(drafter, REPEATED, 3, model=1)
    assert [guess.token for guess in draft] == [12, 13, 14]
    assert sources(draft) == ["draft_model", "suffix", "suffix"]


def test_a_model_without_a_guess_is_asked_no_more() -> None:
    drafter = hybrid()
    drafter._model = Told([12, None, 22])
    assert [guess.token for guess in drafted(drafter, REPEATED, 3)] == [12, 13, 14]


def test_a_retrieved_token_comes_where_the_model_is_less_sure_of_its_own() -> None:
    drafter = hybrid()
    drafter._model = Told([12, 21], confidence=0.5)  # the copy of 12, after a match of twelve: 0.75
    draft = drafted(drafter, REPEATED, 3)
    assert [guess.token for guess in draft] == [12, 13, 14]  # the model had 12, then 21, then 12 again
    assert sources(draft) == ["draft_model"] * 3
    assert draft[0].confidence == pytest.approx(12 / 16)
    drafter._model = Told([12, 21], confidence=0.9)
    assert [guess.token for guess in drafted(drafter, REPEATED, 2)] == [12, 21]


def test_a_split_draft_begins_with_so_many_guesses_of_the_model() -> None:
    drafter = hybrid(split=2)
    drafter._model = Told([12, 13, 21])
    assert sources(drafted(drafter, REPEATED, 4)) == ["draft_model"] * 2 + ["suffix"] * 2
    assert sources(drafted(drafter, REPEATED, 4, model=1)) == ["draft_model"] + ["suffix"] * 3


def test_a_guess_that_was_drawn_with_its_probabilities_stays() -> None:
    drafter = hybrid()
    drafter._model = Told([21], confidence=0.1, probs=Distribution(np.array([21]), np.array([1.0])))
    assert [guess.token for guess in drafted(drafter, REPEATED, 1)] == [21]


class Told(Drafter):
    """A draft model that says the same whatever was before, and some of it at no cost."""

    def __init__(
        self,
        tokens: list[int | None],
        free: list[int] | None = None,
        confidence: float = 1.0,
        probs: Distribution | None = None,
    ) -> None:
        self.tokens, self.free = tokens, free or []
        self.confidence, self.probs = confidence, probs

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess | LazyGuess]:
        for token in self.tokens:
            guess = None if token is None else Guess(token, self.probs, self.confidence)
            yield LazyGuess(lambda guess=guess: guess)  # type: ignore[misc]
        for token in self.free:
            yield Guess(token)


def test_nothing_to_guess_is_no_guess() -> None:
    assert drafted(hybrid(None), NEW, 4) == []
    assert drafted(hybrid(), NEW, 4, model=0) == []


def test_the_more_confident_of_a_copy_and_a_successor_comes() -> None:
    drafter, text = hybrid(None), [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 20, 21, 9, 21]
    for _ in range(8):
        settle(drafter, [21], [], 0, 30)  # 21 -> 30, eight times
    (guess,) = drafted(drafter, text, 1)
    assert (guess.token, guess.source, guess.confidence) == (30, "recycle", pytest.approx(8 / 12))
    (guess,) = drafted(drafter, REPEATED, 1)  # seen once, a match of twelve
    assert (guess.source, guess.confidence) == ("suffix", pytest.approx(12 / 16))


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
        if isinstance(draft_length, Fixed):  # what `adaptive` takes depends on the machine's speed
            assert stats.sources.keys() >= {"suffix", "draft_model" if engine else "recycle"}
        assert stats.drafted


def test_a_store_that_is_no_store_is_told(tmp_path: Any) -> None:
    (tmp_path / "answers").write_text("no store")
    drafter = hybrid(None, store=str(tmp_path / "answers"))
    settle(drafter, NEW, [], 0, 1)
    assert drafter.note is not None
