"""The drafter `head`: which states it reads, and what it does about guesses of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from localspec.core.contracts import DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.sessions import HiddenStateBuffer
from localspec.core.types import Logits, Tokens
from localspec.drafters.head import GUESSED, HeadDraft
from localspec.engines.toy import Toy, ToyHeadSession, ToyTappedSession
from localspec.errors import BadValue

TARGET = Toy(vocab_size=40, taps="1")
TEXT = [3, 1, 4, 1, 5, 9, 2]


class Watched(Toy):
    """A head whose sessions list the tokens of each pass."""

    def __init__(self) -> None:
        super().__init__(vocab_size=40, head=True)
        self.passes: list[list[int]] = []

    def session(self) -> Any:
        passes = self.passes

        class Session(ToyHeadSession):
            def forward(self, tokens: Tokens, rows: int) -> Logits:
                passes.append(list(tokens))
                return super().forward(tokens, rows)

        return Session(self)


def drawn(drafter: HeadDraft, text: list[int], count: int) -> list[int]:
    """Return `count` guesses after a text."""
    sampler, found = Sampler(Sampling()), []
    for candidate in drafter.propose(text, sampler):
        guess = candidate.draw()
        assert guess is not None
        found.append(guess.token)
        if len(found) == count:
            break
    return found


def greedy(text: list[int], count: int) -> list[int]:
    """Return what the target writes; a toy head without noise guesses exactly that."""
    session, found = Toy(vocab_size=40).session(), list(text)
    for _ in range(count):
        session.rewind(0)
        found.append(int(session.forward(found, 1)[0].argmax()))
    return found[len(text) :]


@pytest.fixture
def head() -> Watched:
    return Watched()


@pytest.fixture
def target() -> Cursor:
    return Cursor(TARGET.session())


def test_a_perfect_head_guesses_what_the_target_writes(target: Cursor, head: Watched) -> None:
    drafter = HeadDraft(target, DraftModel(head), name="own")
    assert drawn(drafter, TEXT, 4) == greedy(TEXT, 4)
    assert [len(tokens) for tokens in head.passes] == [len(TEXT) - 1, 1, 1, 1]
    assert target.tokens == TEXT[:-1]


def test_only_what_is_new_is_read_again(target: Cursor, head: Watched) -> None:
    drafter = HeadDraft(target, DraftModel(head), name="own")
    guesses = drawn(drafter, TEXT, 3)
    target.read([*TEXT, *guesses], 4)  # the verification
    longer = [*TEXT, *guesses[:2], 7]
    head.passes.clear()
    (candidate,) = [next(iter(drafter.propose(longer, Sampler(Sampling()))))]
    assert candidate.behind == 3
    assert drawn(drafter, longer, 2) == greedy(longer, 2)
    assert head.passes == [longer[len(TEXT) :], [greedy(longer, 1)[0]]]


def test_guesses_of_others_are_read_without_the_target(target: Cursor, head: Watched) -> None:
    drafter = HeadDraft(target, DraftModel(head), name="own")
    target.read(TEXT[:-1], 0)
    longer = [*TEXT, 8, 6]  # two copies
    assert drawn(drafter, longer, 2) == greedy(longer, 2)
    assert target.tokens == TEXT[:-1]
    assert [len(tokens) for tokens in head.passes] == [len(TEXT) - 1, 1, 1, 1]


def test_a_guess_that_another_replaced_costs_no_pass_more(target: Cursor, head: Watched) -> None:
    drafter = HeadDraft(target, DraftModel(head), name="own")
    target.read(TEXT[:-1], 0)
    first, second = drawn(drafter, TEXT, 2)
    other = [*TEXT, first, (second + 1) % 40]
    head.passes.clear()
    (candidate,) = [next(iter(drafter.propose(other, Sampler(Sampling()))))]
    assert candidate.behind == 1
    assert drawn(drafter, other, 1) == greedy(other, 1)
    assert head.passes == [other[-1:]]


def test_of_a_long_text_only_the_end_is_read(target: Cursor, head: Watched) -> None:
    drafter = HeadDraft(target, DraftModel(head), name="own", window=4)
    long = [at % 40 for at in range(30)]
    (candidate,) = [next(iter(drafter.propose(long, Sampler(Sampling()))))]
    assert candidate.behind == 4
    guesses = drawn(drafter, long, 2)
    assert head.passes[0] == long[-4:]
    target.read([*long, *guesses], 3)
    longer = [*long, *guesses, 7]
    head.passes.clear()
    drawn(drafter, longer, 1)
    assert head.passes == [longer[-3:]]  # no more than is new
    drawn(drafter, long, 1)  # an earlier place in the text
    assert head.passes[1:] == [long[-1:]]
    head.passes.clear()
    drawn(drafter, [9, 8, *long[2:]], 1)  # another text
    assert head.passes == [long[-4:]]


def test_a_long_text_that_the_target_has_not_read_is_read_first(target: Cursor, head: Watched) -> None:
    drafter = HeadDraft(target, DraftModel(head), name="own")
    target.read(TEXT[:2], 0)
    longer = TEXT + [at % 40 for at in range(GUESSED + 5)]
    assert drawn(drafter, longer, 1) == greedy(longer, 1)
    assert target.tokens == longer[:-1]


def test_the_context_ends_the_draft(target: Cursor) -> None:
    short = Toy(vocab_size=40, head=True, context=len(TEXT) + 1)
    drafter = HeadDraft(target, DraftModel(short), name="own")
    assert len(drawn(drafter, TEXT, 9)) == 2
    assert drawn(drafter, TEXT[:1], 9) == []


def test_other_engines_are_refused(target: Cursor) -> None:
    plain = Toy(vocab_size=40)
    for session, engine in ((target.session, plain), (plain.session(), Watched())):
        with pytest.raises(BadValue, match="hidden states"):
            HeadDraft(Cursor(session), DraftModel(engine), name="own")
    assert isinstance(target.session, ToyTappedSession)


def test_a_guess_of_some_tokens_is_that_of_the_wide_row() -> None:
    numbers = np.random.default_rng(3)
    tokens = np.sort(numbers.permutation(200)[:50])
    row = numbers.normal(size=50).astype(np.float32) * 3
    wide = np.full(200, -np.inf, np.float32)
    wide[tokens] = row
    for sampling in (
        Sampling(),
        Sampling(temperature=0.8),
        Sampling(temperature=1.0, top_k=8, top_p=0.9),
        Sampling(repetition_penalty=1.5),
        Sampling(temperature=1.0, logit_bias={int(tokens[4]): 9.0}),
    ):
        before = [int(token) for token in tokens[row.argsort()[-3:]]]
        one, other = (
            Sampler(sampling, seed=1).guess(*given)
            for given in ((row.copy(), before, tokens), (wide.copy(), before))
        )
        assert one.token == other.token
        assert one.confidence == pytest.approx(other.confidence, rel=1e-5)
        if one.probs is not None and other.probs is not None:
            assert one.probs.of(one.token) == pytest.approx(other.probs.of(one.token))


def test_halved_states_stay_finite() -> None:
    kept = HiddenStateBuffer(halved=True)
    kept.put(0, np.array([[1e6, -1e6, 0.5]], np.float32))
    assert kept.first(1).dtype == np.float16
    assert kept.first(1).tolist() == [[65504.0, -65504.0, 0.5]]
