from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from localspec import plugins
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Guess, LazyGuess
from localspec.drafters.early_exit import EarlyExitDraft
from localspec.engines.toy import Toy
from localspec.errors import BadValue
from localspec.runtime.choice import Choice, engine_spec, serving

Ask = Callable[..., Any]
TEXTS = ([1, 2, 3], [1, 2, 3, 9], [1, 2], [5], [1, 2, 3, 9, 9, 9], [1, 2, 3])
GREEDY = Sampler(Sampling())


def guesses(drafter: EarlyExitDraft, text: list[int], sampler: Sampler, count: int = 5) -> list[Guess]:
    """Return the guesses that are drawn, at most `count`."""
    found: list[Guess] = []
    for offer in drafter.propose(text, sampler):
        guess = offer.draw()
        if guess is not None:
            found.append(guess)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("block_size", [1, 8, 0])
def test_guesses_are_what_the_exit_expects_after_any_edit(block_size: int) -> None:
    engine = Toy(exit=1, block_size=block_size)
    drafter = EarlyExitDraft(Cursor(engine.session()), layer=1)
    for text in TEXTS:
        expected = [*text]
        for _ in range(5):
            expected.append(int(engine.session().early(expected, 1)[0].argmax()))  # type: ignore[attr-defined]
        found = guesses(drafter, text, GREEDY)
        assert [guess.token for guess in found] == expected[len(text) :]
        assert all(guess.probs is None for guess in found)


def test_sampled_guesses_keep_what_they_were_drawn_from() -> None:
    engine = Toy(exit=1)
    sampler = Sampler(Sampling(temperature=1.0, top_k=4), coupled=False)
    text = [1, 2, 3]
    for guess in guesses(EarlyExitDraft(Cursor(engine.session()), layer=1), text, sampler):
        expected = sampler.distribution(engine.session().early(text, 1)[0], text)  # type: ignore[attr-defined]
        assert guess.probs is not None
        assert np.array_equal(guess.probs.tokens, expected.tokens)
        assert np.array_equal(guess.probs.probs, expected.probs)
        text.append(guess.token)


def test_an_offer_that_is_refused_reads_nothing_and_is_the_last() -> None:
    target = Cursor(Toy(exit=1).session())
    offers = EarlyExitDraft(target, layer=1).propose([1, 2, 3], GREEDY)
    assert isinstance(next(offers), LazyGuess)
    assert next(offers, None) is None
    assert target.tokens == []


def test_it_guesses_as_far_as_the_context_goes() -> None:
    drafter = EarlyExitDraft(Cursor(Toy(exit=1, context=10).session()), layer=1)
    assert len(guesses(drafter, [1] * 8, GREEDY, 100)) == 3


@pytest.mark.parametrize("layer", [1, 3])
def test_no_layer_reads_a_token_of_an_answer_twice(
    ask: Ask, layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = Toy(exit=layer).session()
    target = Cursor(session)
    drafter = EarlyExitDraft(target, layer=layer)
    first, rest = session._first, session._rest
    read: dict[str, list[int]] = {"first": [], "rest": []}

    def counted_first(tokens: list[int], at: int) -> Any:
        read["first"].append(len(tokens))
        return first(tokens, at)

    def counted_rest(hidden: list[int], at: int, rows: int) -> Any:
        read["rest"].append(len(hidden))
        return rest(hidden, at, rows)

    monkeypatch.setattr(session, "_first", counted_first)
    monkeypatch.setattr(session, "_rest", counted_rest)
    found = ask(target, drafter, room=40)
    assert found.tokens == ask(Cursor(Toy().session()), room=40).tokens
    assert sum(last.accepted for last in found.steps) > 4
    prompt = 8 - 1  # read up to its last token
    assert sum(read["first"]) == sum(read["rest"]) == prompt + sum(1 + last.drafted for last in found.steps)


def test_a_later_exit_is_more_often_right(ask: Ask) -> None:
    stood = []
    for layer in (1, 3):
        target = Cursor(Toy(exit=layer).session())
        answer = ask(target, EarlyExitDraft(target, layer=layer), room=200)
        stood.append(sum(last.accepted for last in answer.steps) / sum(last.drafted for last in answer.steps))
    assert 0.1 < stood[0] < stood[1] < 1


def test_the_layer_is_an_option_of_the_target_s_engine() -> None:
    draft = plugins.parse("drafters", "early_exit:layer=8")
    assert str(serving(draft, engine_spec("openvino", threads=2))) == "openvino:threads=2,exit=8"
    assert str(serving(draft, engine_spec("torch:exit=8"))) == "torch:exit=8"
    assert str(serving(plugins.parse("drafters", "ngram"), engine_spec("openvino"))) == "openvino"


def test_an_engine_without_an_exit_is_refused_at_once() -> None:
    with pytest.raises(BadValue, match="`early_exit` needs an engine with `exit`") as caught:
        Choice(engine="llamacpp", draft="early_exit:layer=8").check()
    assert caught.value.hint == "Choose one that has it: `--engine openvino`, `--engine torch`"
    with pytest.raises(BadValue, match="`early_exit:layer=8` needs `exit=8`"):
        Choice(engine="openvino:exit=4", draft="early_exit:layer=8").check()
    with pytest.raises(BadValue, match="needs an engine with an `exit`") as caught:
        EarlyExitDraft(Cursor(Toy().session()), layer=1)
    assert caught.value.hint
    with pytest.raises(BadValue, match="needs `layer`"):
        Choice(draft="early_exit").check()
