"""The laws that every part keeps, whoever wrote it: each is found by `plugins`, none is named here."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import words

from localspec import plugins
from localspec.core.contracts import Drafter, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Constraint, Sampler, Sampling
from localspec.core.types import Guess, LazyGuess, Tokens
from localspec.engines.toy import Toy
from localspec.plugins import REQUIRED, Part

BLOCK_SIZES = (1, 8, 0)
WIDTH = 6  # few words: copied guesses often stand
TARGETS = {block_size: Toy(vocab_size=WIDTH, block_size=block_size) for block_size in BLOCK_SIZES}
DRAFTS = {
    "text": Toy(vocab_size=6, noise=0.7),
    "head": Toy(vocab_size=6, noise=0.7, head=True),
    "pipo": Toy(vocab_size=6, noise=0.7, pairs="yes"),
    "diffusion": Toy(vocab_size=7, noise=0.7, block=4),  # its last token is the mask
}
PARTS = [part for kind in plugins.KINDS for part in plugins.parts(kind).values()]
LOSSLESS = [name for name, part in plugins.parts("verifiers").items() if part.made_by.lossless]  # type: ignore[attr-defined]


class Verse(Constraint):
    """Verses of five tokens: 4, 2, then a 0 or a 5, then two free ones that are no 3.

    To ask what follows a token that it forbids is an error, as it is with a grammar.
    """

    MAY = ({4}, {2}, {0, 5}, {0, 1, 2, 4, 5}, {0, 1, 2, 4, 5})

    def __init__(self) -> None:
        self.asked = 0

    def allowed(self, answer: Tokens) -> Any:
        self.asked += 1
        return np.isin(np.arange(WIDTH), list(self._may(answer)))

    def _may(self, answer: Tokens) -> set[int]:
        assert all(token in self.MAY[at % 5] for at, token in enumerate(answer))
        return self.MAY[len(answer) % 5]

    def forced(self, answer: Tokens) -> Tokens:
        assert self._may(answer)
        return [4, 2][len(answer) % 5 :] if len(answer) % 5 < 2 else []


Ask = Callable[..., Any]
every_drafter = pytest.mark.parametrize("drafter", plugins.names("drafters"))
every_policy = pytest.mark.parametrize("draft_length", plugins.names("draft_length"))
every_part = pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.kind[:-1]} {part.name}")


def spec(part: Part) -> plugins.Spec:
    """Return a part's spec from a text that gives no more than it must."""
    needed = {name: setting for name, setting in part.settings.items() if setting.default is REQUIRED}
    given = [f"{name}={next(iter(setting.option.choices), 1)}" for name, setting in needed.items()]
    return plugins.parse(part.kind, f"{part.name}:" + ",".join(given))


def made(kind: str, name: str, *arguments: Any) -> Any:
    return spec(plugins.part(kind, name)).make(*arguments)


def target_for(name: str, block_size: int = 1) -> Cursor:
    """Return a cursor on a target that has what the drafter called `name` needs."""
    found = spec(plugins.part("drafters", name))
    needed = found.part.made_by.needs(**found.options) | (
        {"taps": "1"} if kind_of_draft(found.part) == "head" else {}
    )
    toy = Toy(vocab_size=WIDTH, block_size=block_size, **needed) if needed else TARGETS[block_size]
    return Cursor(toy.session())


def kind_of_draft(part: Part) -> str:
    """Return the first kind of model that a drafter runs."""
    return str(part.made_by.kinds[0])


def drafted_by(name: str, target: Cursor) -> Drafter:
    """Return the drafter, with a draft model if it is one of those that run a model."""
    part = plugins.part("drafters", name)
    translation = words.translation() if part.made_by.translates != "never" else None  # type: ignore[attr-defined]
    engine = DRAFTS.get(kind_of_draft(part))  # none for hints, which the target's engine reads
    draft_model = [DraftModel(engine, WIDTH, translation)] if engine and "name" in part.settings else []
    drafter: Drafter = made("drafters", name, target, *draft_model)
    return drafter


def asked(ask: Ask, name: str, draft_length: str, verifier: str, block_size: int = 1, **options: Any) -> Any:
    target = target_for(name, block_size)
    drafter = drafted_by(name, target)
    return ask(
        target, drafter, made("draft_length", draft_length), made("verifiers", verifier), room=60, **options
    )


def plain(ask: Ask, **options: Any) -> Any:
    return ask(Cursor(TARGETS[1].session()), room=60, **options)


@every_drafter
@every_policy
@pytest.mark.parametrize("verifier", LOSSLESS)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_greedy_text_is_plain_text(
    ask: Ask, drafter: str, draft_length: str, verifier: str, block_size: int
) -> None:
    found = asked(ask, drafter, draft_length, verifier, block_size)
    assert found.tokens == plain(ask).tokens
    assert found.text == plain(ask).text
    assert found.finish == "length"


@every_drafter
@every_policy
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_sampled_text_checked_exactly_is_plain_text(
    ask: Ask, drafter: str, draft_length: str, block_size: int
) -> None:
    for seed in (0, 1):
        options = {"sampling": Sampling(temperature=1.0, top_p=0.95, frequency_penalty=0.1), "seed": seed}
        assert (
            asked(ask, drafter, draft_length, "exact", block_size, **options).tokens
            == plain(ask, **options).tokens
        )


@every_drafter
@every_policy
@pytest.mark.parametrize("verifier", LOSSLESS)
def test_text_stops_where_plain_text_stops(ask: Ask, drafter: str, draft_length: str, verifier: str) -> None:
    told = plain(ask).tokens
    for options in ({"stop_tokens": [told[9]]}, {"stop": [f".{told[20]}.{told[21]}.{told[22]}."]}):
        found, wanted = asked(ask, drafter, draft_length, verifier, **options), plain(ask, **options)
        assert (found.tokens, found.text, found.finish) == (wanted.tokens, wanted.text, "stop")


@every_drafter
def test_a_drafter_serves_one_answer_after_another(ask: Ask, drafter: str) -> None:
    target = target_for(drafter)
    source = drafted_by(drafter, target)
    for prompt in ([1, 2, 3, 1, 2], [1, 2], [5, 5, 5, 5], [1, 2, 3, 1, 2, 4]):
        assert ask(target, source, prompt=prompt).tokens == plain(ask, prompt=prompt).tokens[:24]


@every_drafter
@every_policy
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_a_constraint_holds_position_by_position(
    ask: Ask, drafter: str, draft_length: str, block_size: int
) -> None:
    for options in ({}, {"sampling": Sampling(temperature=1.0), "seed": 3}):
        found = asked(ask, drafter, draft_length, "exact", block_size, constraint=Verse(), **options)
        assert found.tokens == plain(ask, constraint=Verse(), **options).tokens
        assert all(token in (4, 2, 0, 1, 5) for token in found.tokens)
        assert (found.tokens[::5], found.tokens[1::5]) == ([4] * 12, [2] * 12)


@every_drafter
@every_policy
def test_copies_that_a_constraint_forbids_are_left_out(ask: Ask, drafter: str, draft_length: str) -> None:
    for repeated in ([4, 2, 3], [4, 2, 0, 3], [4, 2, 0, 1, 3], [1, 4, 2, 5, 5, 3, 3]):
        options = {"constraint": Verse(), "prompt": repeated * 4}
        found = asked(ask, drafter, draft_length, "exact", **options)
        assert found.tokens == plain(ask, **options).tokens


@every_drafter
def test_a_constraint_holds_under_rejection(ask: Ask, drafter: str) -> None:
    options = {"sampling": Sampling(temperature=1.0), "seed": 5, "constraint": Verse()}
    found = asked(ask, drafter, "fixed", "rejection", **options).tokens
    assert (found[::5], found[1::5]) == ([4] * 12, [2] * 12)
    assert set(found[2::5]) <= {0, 5}
    assert 3 not in found


def test_what_a_constraint_forces_is_guessed_and_stands(ask: Ask) -> None:
    target = target_for("none")
    steps = ask(
        target,
        drafted_by("none", target),
        made("draft_length", "fixed"),
        made("verifiers", "exact"),
        room=60,
        constraint=Verse(),
    ).steps
    guesses = [guess for found in steps for guess in found.draft]
    assert [guess.token for guess in guesses] == [4, 2] * 12
    assert {guess.source for guess in guesses} == {"grammar"}
    assert sum(found.accepted for found in steps) == 24
    assert len(steps) == 36


def first(drafter: Drafter, text: Tokens, sampler: Sampler) -> list[Guess]:
    steps = drafter.propose(text, sampler)
    guesses = (step.draw() if isinstance(step, LazyGuess) else step for step in steps)
    return list(islice(filter(None, guesses), 5))


@every_drafter
def test_guesses_are_tokens_and_how_sure_it_is(drafter: str) -> None:
    source = drafted_by(drafter, target_for(drafter))
    for temperature in (0.0, 1.0):
        for guess in first(source, [1, 2, 1, 2], Sampler(Sampling(temperature=temperature), coupled=False)):
            assert 0 <= guess.token < 6
            assert 0 < guess.confidence <= 1
            if guess.probs is not None:
                assert guess.probs.of(guess.token) > 0
                assert guess.probs.probs.sum() == pytest.approx(1)


@every_policy
def test_a_lookahead_ends_and_says_why_it_is_off(draft_length: str) -> None:
    found = made("draft_length", draft_length)
    draft: list[Guess] = []
    while len(draft) < 1000 and found.wants_more(draft, Guess(0)):
        draft.append(Guess(0))
    assert len(draft) <= 256
    assert found.reason is None


@every_part
def test_a_part_is_explained(part: Part) -> None:
    assert part.summary.endswith(".")
    assert 10 < len(part.summary) < 110
    for setting in part.settings.values():
        assert setting.option.help
        assert not setting.option.help.endswith(".")
        assert setting.type in (int, float, bool, str)


@every_part
def test_defaults_are_values_that_the_option_takes(part: Part) -> None:
    for name, setting in part.settings.items():
        if setting.default is not REQUIRED:
            assert setting.parse(str(setting.default), part.name) == setting.default, name


@every_part
def test_a_part_has_one_spelling(part: Part) -> None:
    found = spec(part)
    assert found.part == part
    assert plugins.parse(part.kind, str(found)) == found
    assert part.name.isidentifier()
    assert part.name == part.name.lower()


def test_parts_are_made_from_their_text() -> None:
    target = Cursor(TARGETS[1].session())
    assert made("draft_length", "fixed").wants_more([Guess(0)] * 3, Guess(0))
    assert not plugins.parse("draft_length", "fixed:tokens=3").make().wants_more([Guess(0)] * 3, Guess(0))
    drafter = plugins.parse("drafters", "ngram:longest=3,shortest=3").make(target)
    assert first(drafter, [1, 2, 4, 1, 2], Sampler(Sampling())) == []
    toy = plugins.parse("engines", "toy:vocab_size=9,block_size=0").make(None)
    assert np.array_equal(toy.session().forward([1], 1), Toy(vocab_size=9).session().forward([1], 1))


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_the_toy_keeps_the_contract_of_a_session(block_size: int) -> None:
    session = TARGETS[block_size].session()
    assert session.forward([1, 2, 3, 4, 5, 0, 1, 2, 3, 4], 0).shape == (0, 6)
    assert session.rewind(12) == 10
    kept = session.rewind(9)
    assert kept == {1: 9, 8: 8, 0: 0}[block_size]
    rows = session.forward([1, 2, 3, 4, 5, 0, 1, 2, 3, 5][kept:], 1)
    assert np.array_equal(rows, Toy(vocab_size=6).session().forward([1, 2, 3, 4, 5, 0, 1, 2, 3, 5], 1))
    assert rows.dtype == np.float32
