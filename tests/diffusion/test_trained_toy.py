"""The trained toy: right answers by an exact check, and what samplers and drafts make of it."""

from __future__ import annotations

import random
from functools import cache
from itertools import islice
from pathlib import Path

import puzzles
import pytest
from asking import Numbers
from tokenizers import Tokenizer

from localspec import plugins
from localspec.core.blocks.decode import Drafting, decode_blocks
from localspec.core.blocks.pace import FixedPace
from localspec.core.contracts import DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stop import OutputProcessor
from localspec.engines.diffusion import Diffusion

DATA = Path(__file__).parents[1] / "data" / "diffusion"
COUNT = 60


@cache
def engine(name: str) -> Diffusion:
    return Diffusion(DATA / name, device="cpu", threads=1)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DATA / "toy" / "tokenizer.json"))


class Outcome:
    """Right answers by kind of puzzle, passes, and what became of guesses."""

    def __init__(self, sampler: str, seed: int = 0, draft: str = "") -> None:
        self.texts: list[str] = []
        self.passes = self.drafted = self.accepted = 0
        self._right: dict[bool, list[bool]] = {True: [], False: []}
        target, part = Cursor(engine("toy").session()), plugins.parse("samplers", sampler).make()
        drafting = None
        if draft:
            drafter = plugins.parse("drafters", f"diffusion:name=x{draft}")
            drafting = Drafting(drafter.make(target, DraftModel(engine("draft"))), FixedPace(8))
        for puzzle in islice(puzzles.drawn(seed, tested=True), COUNT):
            prompt = tokenizer().encode(puzzle.prompt).ids
            ends = [tokenizer().token_to_id(puzzles.END)]
            output = OutputProcessor(Numbers(), stop_tokens=ends, max_new_tokens=24)
            steps = list(decode_blocks(prompt, target, part, Sampler(Sampling()), output, drafting))
            text = tokenizer().decode([token for step in steps for token in step.tokens])
            self.texts.append(text)
            self._right[puzzle.prompt.endswith("=")].append(puzzles.is_right(puzzle.prompt, text))
            self.passes += sum(step.passes for step in steps)
            self.drafted += sum(step.drafted for step in steps)
            self.accepted += sum(step.accepted for step in steps)

    @property
    def sums(self) -> float:
        return sum(self._right[True]) / len(self._right[True])

    @property
    def brackets(self) -> float:
        return sum(self._right[False]) / len(self._right[False])


@cache
def outcome(sampler: str, draft: str = "") -> Outcome:
    return Outcome(sampler, draft=draft)


def test_one_token_a_pass_solves_the_puzzles() -> None:
    found = outcome("low_confidence")
    assert found.brackets > 0.95
    assert found.sums > 0.95


def test_more_tokens_a_pass_cost_fewer_passes_and_err_more() -> None:
    several = [outcome(f"low_confidence:k={k}") for k in (1, 2, 4, 8)]
    assert [each.passes for each in several] == sorted((each.passes for each in several), reverse=True)
    assert several[0].brackets > several[1].brackets > several[2].brackets


def test_adas_errs_less_than_its_base_with_four_tokens_a_pass() -> None:
    base, adas = outcome("low_confidence:k=4"), outcome("adas:k=4")
    assert adas.passes == base.passes
    assert adas.brackets > base.brackets


@pytest.mark.parametrize(
    "sampler",
    [
        "low_confidence:threshold=0.8",
        "low_confidence:factor=1",
        "entropy_bounded",
        "wino",
        "anchor_revocable",
    ],
)
def test_samplers_that_wait_for_confidence_save_passes_and_err_little(sampler: str) -> None:
    found, slow = outcome(sampler), outcome("low_confidence")
    assert found.passes < 0.75 * slow.passes
    assert found.brackets > slow.brackets - 0.15
    assert found.sums > slow.sums - 0.05


def test_a_draft_saves_passes_and_leaves_the_texts_as_they_are() -> None:
    plain, drafted = outcome("left_to_right"), outcome("left_to_right", draft=",order=left")
    assert drafted.texts == plain.texts
    assert drafted.accepted > drafted.drafted / 4
    assert drafted.passes < 0.75 * plain.passes


def test_puzzles_are_checked_exactly() -> None:
    for puzzle in islice(puzzles.drawn(3, tested=True), 200):
        assert puzzles.is_right(puzzle.prompt, puzzle.answer)
        assert len(puzzle.prompt + puzzle.answer) <= puzzles.LONGEST
    for prompt, wrong in (("12+34=", "047"), ("12+34=", "46"), ("([", "])" * 7), ("()", ""), ("(", "]" * 15)):
        assert not puzzles.is_right(prompt, wrong)
    assert puzzles.balanced("([()])[]")
    assert not any(map(puzzles.balanced, ["([)]", "(", ")", "(]"]))
    learned = [
        puzzle.prompt for puzzle in islice(puzzles.drawn(0, tested=False), 500) if "=" in puzzle.prompt
    ]
    assert not any(puzzles.held_out(int(prompt[:2]), int(prompt[3:5])) for prompt in learned)
    assert puzzles.addition(random.Random(0), tested=True).prompt not in learned
