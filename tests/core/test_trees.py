"""Branches beside a draft: they never change a text, and the next draft begins with what they tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import plugins
from localspec.core.contracts import Drafter
from localspec.core.cursor import Cursor
from localspec.core.decode import AHEAD, make_draft
from localspec.core.sampler import Constraint, Sampler, Sampling
from localspec.core.sessions import Tree
from localspec.core.types import Branch, Guess, Logits, Tokens
from localspec.draft_length.fixed import Fixed
from localspec.engines.toy import Toy

TOY, PROMPT = Toy(), [3, 1, 4]
Ask = Callable[..., Any]


class Bushy(Drafter):
    """Guesses wrongly on the path, and the next `depth` tokens of `truth` on a branch."""

    def __init__(self, truth: Sequence[int], depth: int, vocab: int = TOY.vocab) -> None:
        self.truth, self.depth, self.vocab = list(truth), depth, vocab
        self.shown: list[tuple[list[int], list[Guess], Logits]] = []

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        after: tuple[int, ...] = ()
        right = self.truth[len(tokens) :][: self.depth]
        yield Guess((right[0] + 1) % self.vocab if right else 0)
        for token in right:
            yield Guess(token, after=after)
            after += (token,)

    def observe_branches(self, tokens: Tokens, branches: Sequence[Guess], logits: Logits) -> None:
        self.shown.append((list(tokens), list(branches), logits.copy()))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("depth", "passes"), [(1, 16), (2, 12), (3, 10)])
def test_the_next_draft_begins_with_what_a_branch_told(
    ask: Ask, depth: int, passes: int, temperature: float
) -> None:
    options = {"prompt": PROMPT, "sampling": Sampling(temperature=temperature), "seed": 3}
    plain = ask(Cursor(TOY.session()), **options)
    drafter = Bushy([*PROMPT, *plain.tokens], depth)
    drafted = ask(Cursor(TOY.session()), drafter, Fixed(tokens=8), **options)
    assert drafted.tokens == plain.tokens
    assert len(drafted.steps) <= passes
    told = [guess for step in drafted.steps for guess in step.draft if guess.source == AHEAD]
    assert told
    assert sum(step.accepted for step in drafted.steps) == len(told)


def test_branches_are_shown_to_the_drafter_with_their_rows(ask: Ask) -> None:
    plain = ask(Cursor(TOY.session()), prompt=PROMPT)
    drafter = Bushy([*PROMPT, *plain.tokens], 2)
    ask(Cursor(TOY.session()), drafter, Fixed(tokens=8), prompt=PROMPT)
    tokens, branches, logits = drafter.shown[0]
    for guess, row in zip(branches, logits, strict=True):
        text = [*tokens, *(guess.after or ()), guess.token]
        assert np.array_equal(row, TOY.session().forward(text, 1)[0])


class Listed(Drafter):
    def __init__(self, *guesses: Guess) -> None:
        self.guesses = guesses

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        yield from self.guesses


def drafted(*guesses: Guess, tokens: int = 9, most: int = 64, ahead: Sequence[Guess] = ()) -> Any:
    sampler = Sampler(Sampling())
    return make_draft([5], Listed(*guesses), Fixed(tokens=tokens), sampler, 99, ahead, most)


def test_a_branch_names_its_parent_by_the_tokens_before_it() -> None:
    found = drafted(Guess(1), Guess(2), Guess(7, after=()), Guess(8, after=(1,)), Guess(9, after=(1, 8)))
    assert [guess.token for guess in found.guesses] == [1, 2]
    assert found.tree() == [Branch(7, 0), Branch(8, 1), Branch(9, 4)]


def test_a_branch_without_its_parent_or_known_already_is_left_out() -> None:
    found = drafted(
        Guess(1), Guess(7, after=(3,)), Guess(1, after=()), Guess(4, after=()), Guess(4, after=())
    )
    assert [guess.token for guess in found.branches] == [4]


def test_branches_count_among_the_guesses_and_an_engine_has_its_own_most() -> None:
    guesses = [Guess(token, after=()) for token in range(1, 7)]
    assert len(drafted(Guess(0), *guesses, tokens=4).branches) == 3
    assert len(drafted(Guess(0), *guesses, most=2).branches) == 2
    assert drafted(Guess(0), *guesses, most=0).branches == []


def test_branches_of_a_draft_that_begins_with_what_was_told_follow_that() -> None:
    found = drafted(Guess(1), Guess(2, after=()), ahead=[Guess(6, source=AHEAD)])
    assert [guess.token for guess in found.guesses] == [6, 1]
    assert found.tree() == [Branch(2, 1)]
    assert found.branches[0].after == (6,)


@given(st.data())
def test_a_tree_attends_to_what_its_tokens_follow(data: Any) -> None:
    path = data.draw(st.integers(1, 5))
    parents: list[int] = []
    for _ in range(data.draw(st.integers(0, 8))):
        parents.append(data.draw(st.integers(0, path + len(parents) - 1)))
    tree = Tree(7, path, parents)
    for token in range(tree.size):
        line, at = {token}, token
        while at:
            at = at - 1 if at < path else parents[at - path]
            line.add(at)
        assert set(np.flatnonzero(tree.sees()[token])) == line
        assert tree.positions()[token] == 7 + len(line) - 1


def test_parts_that_know_no_branches_draft_beside_those_that_do(ask: Ask) -> None:
    """A target without trees gets the path alone."""

    class Plain(type(TOY.session())):  # type: ignore[misc]
        branches = 0

    target = Cursor(Plain(TOY))
    drafter = plugins.parse("drafters", "recycle:successors=8").make(target)
    assert "reads no branches" in drafter.note
    assert "reads no branches" in plugins.parse("drafters", "hybrid:successors=8").make(target).note
    assert plugins.parse("drafters", "recycle").make(target).note is None
    found = ask(target, drafter, room=40)
    assert found.tokens == ask(Cursor(TOY.session()), room=40).tokens
    assert not any(step.branches for step in found.steps)


class Ascending(Constraint):
    """Allows a token that is higher than the one before it; to ask beyond one that is not is an error."""

    def allowed(self, answer: Tokens) -> Any:
        assert all(left < right for left, right in pairwise(answer))
        return np.arange(TOY.vocab) > (answer[-1] if answer else 0)

    def forced(self, answer: Tokens) -> Tokens:
        return ()


def test_a_grammar_is_never_asked_beyond_what_it_forbids(ask: Ask) -> None:
    sampler = Sampler(Sampling(), answer_from=1, constraint=Ascending())
    guesses = [
        Guess(9),
        Guess(4, after=(9,)),
        Guess(5, after=(9, 4)),
        Guess(7, after=()),
        Guess(8, after=(7,)),
    ]
    found = make_draft([5], Listed(*guesses), Fixed(tokens=9), sampler, 99, (), 64)
    assert [guess.token for guess in found.branches] == [7, 8]


@pytest.mark.parametrize("verifier", ["exact", "rejection"])
@pytest.mark.parametrize("policy", ["fixed:tokens=6", "adaptive", "confidence", "heuristic"])
@pytest.mark.parametrize("drafter", ["recycle:successors=8", "hybrid:successors=8"])
def test_trees_keep_the_greedy_text(ask: Ask, drafter: str, policy: str, verifier: str) -> None:
    plain = ask(Cursor(TOY.session()), room=200)
    target = Cursor(TOY.session())
    parts = [
        plugins.parse("drafters", drafter).make(target),
        plugins.parse("draft_length", policy).make(),
        plugins.parse("verifiers", verifier).make(),
    ]
    assert ask(target, *parts, room=200).tokens == plain.tokens


@pytest.mark.parametrize("drafter", ["recycle:successors=8", "hybrid:successors=8"])
def test_a_repeated_text_has_branches(ask: Ask, drafter: str) -> None:
    target, branches = Cursor(TOY.session()), 0
    made = plugins.parse("drafters", drafter).make(target)
    for seed in range(4):
        sampling = Sampling(temperature=0.6)
        plain = ask(Cursor(TOY.session()), sampling=sampling, seed=seed, room=120)
        found = ask(target, made, Fixed(tokens=6), sampling=sampling, seed=seed, room=120)
        assert found.tokens == plain.tokens
        branches += sum(len(step.branches) for step in found.steps)
    assert branches > 0
