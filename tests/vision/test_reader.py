"""Passes of a reader over embeddings: several texts at once, rewinds, and what a recorded look returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from localspec.decoder import capacity
from localspec.engines.torch.engine import Torch
from localspec.engines.torch.vision.eyes import RecordedEyes
from localspec.engines.torch.vision.reader import Reader
from localspec.pictures.schedule import Decision, Schedule

TEXTS, COUNT, VISUAL = 3, 30, range(5, 25)
DECISIONS = (Decision(1, 9), Decision(3, 9), Decision(6, 4))
SCHEDULES = {
    "full": Schedule(),
    "reroute": Schedule(DECISIONS),
    "pdrop": Schedule(DECISIONS, returns=False),
    "fastv": Schedule(DECISIONS[:1], returns=False),
}
POSITIONS = torch.arange(COUNT + 8)


@pytest.fixture(scope="module")
def reader(llava: Path) -> Reader:
    engine = Torch(llava, device="cpu")
    assert engine.seeing
    return engine.seeing.reader


def drawn(reader: Reader) -> Any:
    """Return embeddings [texts, tokens, width] of prompts, and of what follows."""
    return torch.randn(TEXTS, COUNT + 8, reader.shape.width, generator=torch.Generator().manual_seed(0))


def first(reader: Reader, x: Any, schedule: Schedule) -> Any:
    """Return the states of prompts."""
    with torch.inference_mode():
        return reader.read(
            x[:, :COUNT], POSITIONS[:COUNT], reader.memory(COUNT, len(x)), VISUAL, schedule
        ).clone()


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_texts_read_at_once_are_those_read_alone(
    reader: Reader, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 8)  # so that buffers move
    x = drawn(reader)
    found = []
    with torch.inference_mode():
        for some in (x, x[:1], x[1:2], x[2:]):
            memory = reader.memory(64, len(some))
            states = [reader.read(some[:, :COUNT], POSITIONS[:COUNT], memory, VISUAL, schedule)]
            states += [
                reader.read(some[:, begin:end], POSITIONS[begin:end], memory)
                for begin, end in ((COUNT, COUNT + 1), (COUNT + 1, COUNT + 8))
            ]
            found.append(torch.cat(states, 1))
    assert (torch.cat(found[1:]) - found[0]).abs().max() < 1e-4


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("texts", [1, TEXTS])
def test_what_was_dropped_changes_nothing(reader: Reader, schedule: Schedule, texts: int) -> None:
    x = drawn(reader)[:texts]
    memory = reader.memory(64, texts)
    with torch.inference_mode():
        reader.read(x[:, :COUNT], POSITIONS[:COUNT], memory, VISUAL, schedule)
        kept = [*memory.lengths]
        plain = reader.read(x[:, COUNT : COUNT + 3], POSITIONS[COUNT : COUNT + 3], memory).clone()
        memory.cut(3)
        assert memory.lengths == kept
        reader.read(-x[:, COUNT:], POSITIONS[COUNT:], memory)
        memory.cut(8)
        again = reader.read(x[:, COUNT : COUNT + 3], POSITIONS[COUNT : COUNT + 3], memory)
    assert (again - plain).abs().max() < 1e-5


@pytest.mark.parametrize("texts", [1, TEXTS])
def test_all_tokens_kept_are_the_full_model(reader: Reader, texts: int) -> None:
    x = drawn(reader)[:texts]
    every = tuple(Decision(decision.layer, len(VISUAL)) for decision in DECISIONS)
    full = first(reader, x, SCHEDULES["full"])
    for returns in (True, False):
        assert (first(reader, x, Schedule(every, returns)) - full).abs().max() < 1e-4
    assert (first(reader, x, SCHEDULES["reroute"]) - full)[:, -1].abs().max() > 0.01


@pytest.mark.parametrize("texts", [1, TEXTS])
def test_one_decision_is_the_pruner_with_and_without_returns(reader: Reader, texts: int) -> None:
    x = drawn(reader)[:texts]
    rerouted = first(reader, x, Schedule(DECISIONS[:1]))
    assert (first(reader, x, SCHEDULES["fastv"]) - rerouted).abs().max() < 1e-4
    twice = [first(reader, x, SCHEDULES[name]) for name in ("reroute", "pdrop")]
    assert (twice[0] - twice[1])[:, -1].abs().max() > 1e-3  # more decisions tell them apart


def test_a_decision_before_the_first_layer(reader: Reader) -> None:
    x = drawn(reader)
    found = first(reader, x, Schedule((Decision(0, 5),)))
    memory = reader.memory(COUNT)
    with torch.inference_mode():
        reader.read(x[:1, :COUNT], POSITIONS[:COUNT], memory, VISUAL, Schedule((Decision(0, 5),)))
    assert memory.lengths == [COUNT - len(VISUAL) + 5] * reader.shape.layers
    assert torch.isfinite(found).all()


def test_a_recorded_look_belongs_to_its_picture() -> None:
    class Recorder:
        """Runs a pass again where a card would replay it."""

        def record(self, run: Any) -> Any:
            run()
            return run

    pictures = [torch.full((1, 3, 2, 2), value) for value in (1.0, 2.0, 3.0)]
    eyes = RecordedEyes(lambda pixels: pixels.flatten(1) * 2, pictures[0], Recorder())
    seen = [eyes(each) for each in pictures]
    for each, states in zip(pictures, seen, strict=True):
        assert torch.equal(states, each.flatten(1) * 2)
    assert torch.equal(pictures[0], torch.ones(1, 3, 2, 2))
