"""Drafts of diffusion models: the laws of the tables, and the text of a target that checks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tiny_diffusion
from asking import PROMPT, canvas_on, filled
from scipy.stats import chisquare

from localspec import plugins
from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.decode import opened
from localspec.core.blocks.pace import FixedPace, MeasuredPace
from localspec.core.blocks.types import Block
from localspec.core.blocks.verify import checked, residual, scored
from localspec.core.contracts import BlockSession, DraftModel, Engine
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Distribution, Logits, Step
from localspec.engines.diffusion import Diffusion
from localspec.engines.toy import Toy
from localspec.errors import BadValue

TARGET, DRAFT = Toy(vocab_size=16, block=4), Toy(vocab_size=16, block=4, noise=0.5)
TEXT = [7, 3, 21, 9, 30, 2, 14, 5]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Diffusion]:
    """Return a model with so many layers."""
    place = tmp_path_factory.mktemp("models")

    def made(layers: int) -> Diffusion:
        folder = tiny_diffusion.write(place / str(layers), "sdar", layers)
        return Diffusion(folder, device="cpu")

    return made


def revealed(engine: Engine, order: list[int], tokens: list[int]) -> Canvas:
    """Return a canvas in which tokens were revealed at the places `order`, one a pass."""
    canvas = canvas_on(engine, TEXT, 4)
    for place in order:
        canvas.passes += 1
        canvas.reveal([place], [tokens[place]])
    return canvas


def step_by_step(engine: Engine, order: list[int], tokens: list[int]) -> Logits:
    """Return the logits [4, vocab] about each place, from passes over the block as it then was."""
    canvas = canvas_on(engine, TEXT, 4)
    found = {}
    for place in order:
        found[place] = canvas.read(Block(canvas.tokens, canvas.positions)).logits[place].copy()
        canvas.reveal([place], [tokens[place]])
    return np.stack([found[place] for place in range(4)])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_all_copies_score_as_step_by_step_passes(
    make: Callable[[int], Diffusion], layers: int, order: list[int]
) -> None:
    engine, tokens = make(layers), [11, 28, 4, 19]
    one_pass = canvas_on(engine, TEXT, 4)
    found = scored(one_pass, revealed(engine, order, tokens), [0, 1, 2, 3], "all")
    assert one_pass.passes == 1
    assert np.abs(found - step_by_step(engine, order, tokens)).max() < 1e-4


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_two_copies_score_as_step_by_step_passes_in_one_layer_alone(
    make: Callable[[int], Diffusion], order: list[int]
) -> None:
    """Each copy sees the others as they are at its own step, and not as they were at theirs."""
    tokens = [11, 28, 4, 19]
    for layers in (1, 2):
        engine = make(layers)
        found = scored(canvas_on(engine, TEXT, 4), revealed(engine, order, tokens), [0, 1, 2, 3], "two")
        off = np.abs(found - step_by_step(engine, order, tokens)).max()
        assert (off < 1e-4) == (layers == 1)


def test_a_half_revealed_draft_and_given_tokens_are_scored_alike(make: Callable[[int], Diffusion]) -> None:
    """The block begins with a token of the text, and its last mask was not revealed."""
    for layers, table, places in ((2, "all", [1, 2]), (1, "two", [1, 2])):
        engine = make(layers)
        target, drafted = (opened([*TEXT, 33], Cursor(engine.session()), Sampler(Sampling())) for _ in "td")
        native = []
        for place, token in ((1, 5), (2, 8)):
            found = drafted.read(Block(drafted.tokens, drafted.positions)).logits[place]
            native.append(found.copy())
            drafted.reveal([place], [token])
        assert drafted.masked == [3]
        found = scored(target, drafted, places, table)
        assert np.abs(found - np.stack(native)).max() < 1e-4


@pytest.mark.parametrize("order", ["left", "confidence"])
@pytest.mark.parametrize("kind", ["toy", "tiny"])
def test_a_draft_that_is_the_target_is_accepted_whole(
    make: Callable[[int], Diffusion], kind: str, order: str
) -> None:
    engine: Engine = TARGET if kind == "toy" else make(2)
    for prompt, room in ((PROMPT, 24), (PROMPT[:5], 23)):  # whole blocks
        found = filled(engine, draft=engine, options=f",order={order}", prompt=prompt, room=room)
        own = len(found.steps) if order == "left" else 0  # the target's own token, the last of each block
        assert found.drafted == found.accepted == room - own
        alone = "left_to_right" if order == "left" else "low_confidence"
        assert found.tokens == filled(engine, alone, prompt=prompt, room=room).tokens
        assert found.passes == len(found.steps)


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("depth", [1, 2, 9, None])
def test_a_draft_from_left_to_right_changes_no_greedy_text(
    make: Callable[[int], Diffusion], depth: int | None, k: int
) -> None:
    """It is that of the target's sampler from left to right, whatever is accepted, and however revealed."""
    for target, draft in ((TARGET, DRAFT), (make(2), make(1))):
        for prompt in (PROMPT, PROMPT[:3]):
            plain = filled(target, "left_to_right", prompt=prompt, room=40)
            pace = FixedPace(depth) if depth else MeasuredPace(stepwise=k == 1)
            options = f",k={k}"
            found = filled(
                target, "left_to_right", draft=draft, options=options, pace=pace, prompt=prompt, room=40
            )
            assert found.tokens == plain.tokens
            assert found.drafted > 0


def test_a_draft_that_stands_brings_the_token_behind_it(make: Callable[[int], Diffusion]) -> None:
    """The target decides the mask behind a draft in the same pass; one that is the last needs no draft."""
    for layers, table in ((2, "all"), (1, "two")):
        engine = make(layers)
        found = filled(engine, draft=engine, options=f",copies={table}", pace=FixedPace(1), room=8)
        assert [step.passes for step in found.steps] == [1, 1, 1, 1]
        assert [len(step.tokens) for step in found.steps] == [2, 2, 2, 2]
        assert [step.drafted for step in found.steps] == [1, 1, 1, 1]
    engine = make(2)
    found = filled(engine, "left_to_right", draft=engine, pace=FixedPace(2), room=8)
    assert [(len(step.tokens), step.drafted) for step in found.steps] == [(3, 2), (1, 0)] * 2


def test_a_mask_before_drafted_tokens_is_not_decided_with_them() -> None:
    canvas, drafted = (canvas_on(TARGET, TEXT, 4) for _ in "td")
    drafted.passes = 1
    drafted.reveal([0, 2], [5, 6])
    found = checked(canvas, drafted, "all")
    assert found.drafted == 1
    assert canvas.masked == [1, 2, 3]


def test_some_drafts_are_accepted_and_save_passes() -> None:
    found = filled(TARGET, draft=DRAFT, room=60)
    assert 0 < found.accepted < found.drafted
    assert found.passes < 60


def test_a_published_order_keeps_what_the_target_chose_beside_the_draft() -> None:
    found = filled(TARGET, draft=DRAFT, options=",order=confidence,copies=two", room=40)
    assert len(found.tokens) == 40
    assert 15 not in found.tokens


@pytest.mark.parametrize("k", [1, 4])
def test_sampled_text_has_the_distribution_of_the_target(k: int) -> None:
    """Rejection of a left-to-right draft leaves the law of both first tokens as it is."""
    target, draft = Toy(vocab_size=4, block=4), Toy(vocab_size=4, block=4, noise=0.7)
    warm, count = Sampling(temperature=1.0), 3000
    drawn = Counter(
        tuple(
            filled(
                *(target, "left_to_right"),
                draft=draft, options=f",k={k}", sampling=warm, seed=seed, room=2,
            ).tokens
        )
        for seed in range(count)
    )  # fmt: skip
    sampler = Sampler(warm)
    session = target.session()
    assert isinstance(session, BlockSession)
    session.forward(PROMPT, 0)
    canvas = Canvas(session, PROMPT, [], 4, sampler)
    one = canvas.law(canvas.writable(canvas.read(Block(canvas.tokens, canvas.positions)).logits)[0])
    wanted = {}
    for first in range(3):
        canvas = Canvas(session, PROMPT, [first], 4, sampler)
        two = canvas.law(canvas.writable(canvas.read(Block(canvas.tokens, canvas.positions)).logits)[1])
        wanted |= {(first, second): count * one.of(first) * two.of(second) for second in range(3)}
    assert chisquare([drawn[pair] for pair in wanted], list(wanted.values())).pvalue > 1e-3


def test_a_residual_is_normed() -> None:
    tokens = np.arange(3)
    law = residual(
        Distribution(tokens, np.array([0.5, 0.3, 0.2])), Distribution(tokens[:2], np.array([0.7, 0.3]))
    )
    assert law.probs.tolist() == [0.0, 0.0, 1.0]
    same = Distribution(tokens, np.array([0.5, 0.3, 0.2]))
    assert residual(same, same) is same


def test_what_happens_once_does_not_decide_for_long() -> None:
    """First measurements may hold a recording: both ways are measured a second time soon."""
    pace = MeasuredPace(stepwise=True)
    pace.learn(step(4, 0, 0, 0.0, 400.0), 0)
    pace.learn(step(4, 3, 3, 300.0, 100.0), 3)
    assert pace.depth(3) == 3
    asked = []
    for _ in range(12):
        asked.append(bool(pace.depth(3)))
        pace.learn(step(1, 3, 0, 3.0, 1.0) if asked[-1] else step(4, 0, 0, 0.0, 4.0), 3)
    assert asked[-4:] == [False] * 4
    assert pace.reason


def test_what_a_draft_has_missed_is_no_cost_of_a_guess() -> None:
    """A prompt that the draft reads in the first step of each answer costs more than twenty guesses."""
    pace, found = MeasuredPace(stepwise=False), []
    for _ in range(6):
        behind, steps = True, []
        for at in range(20):
            depth = pace.depth(4)
            steps.append(bool(depth))
            last = step(3, 4, 2, 50.0 * behind + 1.0, 1.2) if depth else step(4, 0, 0, 0.0, 4.0)
            behind = behind and not depth
            pace.learn(replace(last, finish="stop") if at == 19 else last, depth)
        found.append(sum(steps))
    assert found[0] >= 17  # plain once or twice
    assert all(count >= 18 for count in found[1:])
    assert pace.reason is None


def test_a_draft_that_keeps_losing_is_tried_seldom() -> None:
    pace, drafted = MeasuredPace(stepwise=True), []
    for _ in range(1200):
        depth = pace.depth(4)
        drafted.append(bool(depth))
        pace.learn(step(1, depth, 0, 3.0 * depth, 1.0) if depth else step(4, 0, 0, 0.0, 4.0), depth)
    trials = [at for at in range(1, 1200) if drafted[at] and not drafted[at - 1]]
    assert sum(drafted) == 2 * len(trials)  # two drafts in a row
    assert len(trials) <= 7
    gaps = [right - left for left, right in pairwise(trials)]
    assert gaps == sorted(gaps)


def test_a_draft_that_comes_to_pay_is_taken() -> None:
    pace = MeasuredPace(stepwise=False)
    for at in range(600):
        accepted = 0 if at < 100 else 4
        depth = pace.depth(4)
        pace.learn(step(accepted + 1, 4, accepted, 1.0, 1.2) if depth else step(4, 0, 0, 0.0, 4.0), depth)
    assert pace.depth(4) == 4
    assert pace.reason is None


def step(tokens: int, drafted: int, accepted: int, draft: float, target: float) -> Step:
    return Step(tuple(range(tokens)), drafted, accepted, draft, target)


def test_the_pace_follows_costs() -> None:
    """A draft that costs a tenth of the target is taken whole, one that costs as much not at all."""
    cheap, dear = MeasuredPace(stepwise=True), MeasuredPace(stepwise=True)
    for pace, cost in ((cheap, 0.1), (dear, 1.0)):
        assert pace.depth(8) == 0  # the plain way is measured first
        pace.learn(step(8, 0, 0, 0.0, 8.0), 0)
        assert pace.depth(8) == 8
        pace.learn(step(8, 8, 8, 8 * cost, 1.5), 8)
    assert cheap.depth(8) == 8
    assert cheap.reason is None
    for _ in range(8):
        dear.learn(step(1, 8, 0, 8.0, 1.5), 8)
        cheap.learn(step(2, 8, 1, 0.8, 1.5), 8)
    assert dear.depth(8) == 0
    dear.learn(step(8, 0, 0, 0.0, 8.0), 0)
    assert dear.reason == "a draft was measured to be slower"
    assert cheap.depth(8) < 8
    taken = set()
    for _ in range(60):
        depth = dear.depth(8)
        taken.add(depth)
        dear.learn(step(1, 8, 0, 8.0, 1.5) if depth else step(8, 0, 0, 0.0, 8.0), depth)
    assert taken == {0, 1}  # a probe from time to time, of the depth that costs least


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        (Toy(block=4), Toy(block=8), "blocks of 4 tokens with the mask 63, the draft of 8"),
        (Toy(block=4), Toy(vocab_size=32, block=4), "the mask 63, the draft of 4 with 31"),
        (Toy(block=4), Toy(), "drafts with a diffusion model"),
        (Toy(), Toy(), "drafts with a diffusion model"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(target: Toy, draft: Toy, message: str) -> None:
    spec = plugins.parse("drafters", "diffusion:name=x")
    with pytest.raises(BadValue, match=message):
        spec.make(Cursor(target.session()), DraftModel(draft, 64))


def test_no_draft_for_a_target_whose_text_sees_the_block(tmp_path: Path) -> None:
    both_ways = Diffusion(tiny_diffusion.write(tmp_path / "model", "llada"), device="cpu")
    spec = plugins.parse("drafters", "diffusion:name=x")
    with pytest.raises(BadValue, match="whose text does not see the block that follows"):
        spec.make(Cursor(both_ways.session()), DraftModel(both_ways, 40))
