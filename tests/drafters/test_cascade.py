from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from localspec.core.contracts import DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stats import Stats
from localspec.core.types import Distribution, Guess, LazyGuess, Logits, Tokens
from localspec.draft_length.adaptive.policy import Adaptive
from localspec.draft_length.fixed import Fixed
from localspec.drafters.cascade import CascadeDraft
from localspec.drafters.cascade.rules import Rules
from localspec.engines.toy import Toy
from localspec.errors import BadValue
from localspec.runtime.choice import Choice, engine_spec, serving
from localspec.verifiers.rejection import Rejection

Ask = Callable[..., Any]
GREEDY = Sampler(Sampling())
RULES = Rules(0.6, 0.3)
WIDTH = 6
REPEATED = [1, 2, 3, 4, 5, 1, 2, 3]


def rows(*likely: dict[int, float]) -> Logits:
    """Return logits [rows, 6] of these probabilities; the other tokens share what is left."""
    found = np.zeros((len(likely), WIDTH))
    for at, shares in enumerate(likely):
        found[at] = (1 - sum(shares.values())) / (WIDTH - len(shares))
        for token, share in shares.items():
            found[at, token] = share
    return np.log(found).astype(np.float32)


def checked(tokens: Tokens, logits: Logits, sampler: Sampler = GREEDY) -> list[tuple[int, str]]:
    found = RULES.check([Guess(token) for token in tokens], logits, [0], sampler)
    return [(one.guess.token, one.tier) for one in found]


def test_a_likely_guess_is_kept_a_medium_one_replaced_and_an_unlikely_one_left_to_the_target() -> None:
    best, near, far = {1: 0.6, 2: 0.1}, {1: 0.5, 2: 0.31}, {1: 0.5, 2: 0.2}
    assert checked([1, 1], rows(best, best)) == [(1, "draft"), (1, "draft")]
    assert checked([2, 1], rows(near, best)) == [(2, "draft"), (1, "draft")]  # r = 0.62
    assert checked([1, 2, 1], rows(best, far, best)) == [(1, "draft"), (1, "middle")]  # r = 0.4
    assert checked([1, 2, 1], rows(best, best, best)) == [(1, "draft"), (1, "")]  # r = 0.17


def test_the_thresholds_are_inclusive_and_ordered() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32))
    for rules, tier in ((Rules(0.5, 0.1), "draft"), (Rules(0.6, 0.5), "middle"), (Rules(0.9, 0.6), "")):
        assert rules.check([Guess(1)], logits, [0], GREEDY)[0].tier == tier
    for accept, escalate in ((0.2, 0.3), (1.1, 0.3), (0.5, -0.1), (float("nan"), 0.3)):
        with pytest.raises(BadValue):
            Rules(accept, escalate)


def test_its_confidence_is_the_middle_tier_s_probability() -> None:
    first, second = RULES.check([Guess(2), Guess(4)], rows({1: 0.5, 2: 0.31}, {3: 0.7}), [0], GREEDY)
    assert first.guess == Guess(2, None, pytest.approx(0.31, abs=1e-5), "middle")  # type: ignore[arg-type]
    assert (second.guess.token, second.guess.confidence) == (3, pytest.approx(0.7, abs=1e-5))


def test_a_sampled_guess_carries_the_distribution_of_what_is_emitted() -> None:
    middle, draft = np.array([0.5, 0.35, 0.1, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
    emitted = np.array([0.1, 0.2, 0, 0]) + 0.7 * middle  # 0 and 1 are kept, 2 and 3 pass on
    probs, counts = Distribution(np.arange(4), draft), np.zeros(4)
    sampler = Sampler(Sampling(temperature=1.0), seed=1, coupled=False)
    for _ in range(4000):
        guess = Guess(sampler.draw(probs), probs)
        (found,) = RULES.check([guess], np.log(middle[None]).astype(np.float32), [0], sampler)
        assert found.guess.probs is not None
        assert found.guess.probs.probs == pytest.approx(emitted, abs=1e-6)
        counts[found.guess.token] += 1
    assert np.abs(counts / 4000 - emitted).max() < 0.03


def cascade(
    target: Cursor, model: Toy | None = None, middle: Toy | None = None, **options: Any
) -> CascadeDraft:
    models = [DraftModel(one, WIDTH) if one else None for one in (model, middle)]
    given = {"middle": "toy" if middle else "2"} | options
    drafter = CascadeDraft(target, *models, **given)
    drafter.begin([])
    return drafter


def near(engine: Toy = Toy(vocab_size=WIDTH, exit=2)) -> Cursor:  # noqa: B008
    return Cursor(engine.session())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("model", [None, Toy(vocab_size=WIDTH, noise=0.5)], ids=["copies", "model"])
@pytest.mark.parametrize("middle", [None, Toy(vocab_size=WIDTH, noise=0.2)], ids=["exit", "another"])
@pytest.mark.parametrize("block_size", [1, 8, 0])
def test_text_is_plain_text_whatever_tier_guessed(
    ask: Ask, temperature: float, model: Toy | None, middle: Toy | None, block_size: int
) -> None:
    sampling, stats = Sampling(temperature=temperature), Stats()
    for policy in (Fixed(tokens=7), Adaptive()):
        target = near(Toy(vocab_size=WIDTH, exit=2, block_size=block_size))
        drafter = cascade(target, model, middle)
        for prompt in ([1, 2, 3, 1, 2, 3, 1], [4, 4, 1], [1, 2, 3, 1, 2, 3, 1, 5]):
            found = ask(target, drafter, policy, prompt=prompt, room=60, sampling=sampling)
            plain = ask(Cursor(Toy(vocab_size=WIDTH).session()), prompt=prompt, room=60, sampling=sampling)
            assert found.tokens == plain.tokens
            for last in found.steps:
                stats.add(last)
    assert stats.sources["middle"].accepted > 10


def test_a_perfect_middle_tier_is_always_right(ask: Ask) -> None:
    target = near(Toy(vocab_size=WIDTH))
    drafter = cascade(target, None, Toy(vocab_size=WIDTH), accept=1.0, escalate=0.0)
    found = ask(target, drafter, Fixed(tokens=8), room=100)
    sure = [guess.source for last in found.steps for guess in last.draft[last.accepted :]]
    assert "middle" not in sure  # only unchecked copies are rejected
    assert sum(guess.source == "middle" for last in found.steps for guess in last.draft) > 10


def test_a_replaced_guess_is_drafted_on_from() -> None:
    target = near()
    drafter = cascade(target, None, Toy(vocab_size=WIDTH, seed=9), escalate=0.0)
    drafter.observe([1, 2], np.zeros((1, WIDTH), np.float32), (0, 3))  # type: ignore[arg-type]
    draft = []
    for candidate in drafter.propose(REPEATED, GREEDY):
        guess = candidate.draw() if isinstance(candidate, LazyGuess) else candidate
        assert guess is not None
        draft.append(guess)
        if len(draft) == 6:
            break
    text, own = list(REPEATED), Toy(vocab_size=WIDTH, seed=9)
    tiers = [drafter.tier(len(REPEATED) + at, guess.token) for at, guess in enumerate(draft)]
    assert "middle" in tiers[:-1]
    for guess, tier in zip(draft, tiers, strict=True):
        if tier == "middle":
            assert guess.token == own.session().forward(text, 1)[0].argmax()
        text.append(guess.token)


def test_a_declined_check_lets_guesses_out_under_their_own_source() -> None:
    target = near()
    candidates = cascade(target).propose(REPEATED, GREEDY)
    offer, copy = next(candidates), next(candidates)
    assert isinstance(offer, LazyGuess)
    assert (offer.source, offer.instead) == ("middle", copy)
    assert isinstance(copy, Guess)
    assert (copy.token, copy.source) == (4, "suffix")
    assert target.tokens == []
    again = next(candidates)
    assert isinstance(again, LazyGuess)  # the middle tier may check the rest
    drawn = again.draw()
    assert drawn is not None
    assert drawn.source == "middle"


def test_an_unchecked_guess_has_no_tier_nor_has_one_of_another_step() -> None:
    drafter = cascade(near(), None, Toy(vocab_size=WIDTH), accept=0.0, escalate=0.0)
    offer = next(drafter.propose(REPEATED, GREEDY))
    assert isinstance(offer, LazyGuess)
    guess = offer.draw()
    assert guess is not None
    assert drafter.tier(len(REPEATED), guess.token) == "draft"
    assert drafter.tier(len(REPEATED), guess.token + 1) == ""
    drafter.observe([*REPEATED, guess.token], np.zeros((2, WIDTH), np.float32), (1, 1))  # type: ignore[arg-type]
    assert drafter.tier(len(REPEATED), guess.token) == ""
    declined = drafter.propose(REPEATED, GREEDY)
    next(declined)
    copy = next(declined)
    assert isinstance(copy, Guess)
    assert drafter.tier(len(REPEATED), copy.token) == ""


def test_the_first_layers_read_no_guess_twice(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Toy(vocab_size=WIDTH, exit=3).session()
    target, read = Cursor(session), {"first": 0, "rest": 0}
    first, rest = session._first, session._rest

    def counted_first(tokens: list[int], at: int) -> Any:
        read["first"] += len(tokens)
        return first(tokens, at)

    def counted_rest(hidden: list[int], at: int, rows: int) -> Any:
        read["rest"] += len(hidden)
        return rest(hidden, at, rows)

    monkeypatch.setattr(session, "_first", counted_first)
    monkeypatch.setattr(session, "_rest", counted_rest)
    found = ask(target, cascade(target, middle=None, accept=0.0, escalate=0.0), Fixed(tokens=5), room=60)
    assert found.tokens == ask(Cursor(Toy(vocab_size=WIDTH).session()), room=60).tokens
    assert read["rest"] == 8 - 1 + sum(1 + last.drafted for last in found.steps)
    assert read["rest"] <= read["first"] < read["rest"] + 20  # a block's end that the answer did not need


def test_beyond_the_context_nothing_is_checked(ask: Ask) -> None:
    for middle in (None, Toy(vocab_size=WIDTH, context=20)):
        target = near(Toy(vocab_size=WIDTH, exit=2, context=40))
        found = ask(target, cascade(target, None, middle), Fixed(tokens=6), prompt=REPEATED, room=32)
        assert found.tokens == ask(near(Toy(vocab_size=WIDTH)), prompt=REPEATED, room=32).tokens


def test_rejection_keeps_the_target_s_distribution(ask: Ask) -> None:
    target = near(Toy(vocab_size=WIDTH, exit=2))
    drafter = cascade(target, Toy(vocab_size=WIDTH, seed=3), accept=0.5, escalate=0.4)
    sampling, prompt = Sampling(temperature=3.0), [3, 1, 4]
    counts = np.zeros((2, WIDTH))
    for seed in range(2000):
        asked = {"prompt": prompt, "sampling": sampling, "seed": seed, "room": 3}
        tokens = ask(target, drafter, Fixed(tokens=2), Rejection(), **asked).tokens
        counts[0, tokens[0]] += 1
        counts[1, tokens[1]] += tokens[0] == 1
    sampler = Sampler(sampling, answer_from=3)
    for at, text in enumerate(([3, 1, 4], [3, 1, 4, 1])):
        due = sampler.distribution(Toy(vocab_size=WIDTH).session().forward(text, 1)[0], text).probs
        total = counts[at].sum()
        assert ((counts[at] - total * due) ** 2 / (total * due)).sum() < 25.7  # 5 degrees, p = 1e-4


def test_a_tier_of_the_target_is_an_option_of_its_engine() -> None:
    def served(draft: str, engine: str) -> str:
        from localspec import plugins

        return str(serving(plugins.parse("drafters", draft), engine_spec(engine)))

    assert served("cascade:middle=8", "openvino") == "openvino:exit=8"
    assert served("cascade:middle=exit", "openvino:exit=3") == "openvino:exit=3"
    assert served("cascade:middle=a2-3+m5", "torch") == "torch:skip=True"
    assert served("cascade:middle=mask", "torch") == "torch:skip=True"
    assert served("cascade:middle=smollm2-135m", "llamacpp") == "llamacpp"
    for draft, engine in (("exit", "llamacpp"), ("mask", "openvino"), ("a2", "openvino")):
        with pytest.raises(BadValue, match="`cascade` needs an engine with"):
            served(f"cascade:middle={draft}", engine)
    with pytest.raises(BadValue, match="has no middle tier `4`"):
        CascadeDraft(near(Toy()), middle="4")


def test_wrong_thresholds_are_refused_before_anything_is_loaded() -> None:
    with pytest.raises(BadValue, match="`escalate` is 0.5 and `accept` is 0.2") as caught:
        Choice(draft="cascade:middle=exit,accept=0.2,escalate=0.5").check()
    assert caught.value.hint
    with pytest.raises(BadValue, match="`escalate` is 0.7 and `accept` is 0.6"):
        Choice(verifier="via:escalate=0.7").check()
    with pytest.raises(BadValue, match="`accept` of `via` is `1.5`"):
        Choice(verifier="via:accept=1.5").check()
