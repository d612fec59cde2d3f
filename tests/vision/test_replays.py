"""Prompts with pictures whose pass is recorded: padded, replayed, and the same as read one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from localspec.engines.torch.engine import Torch
from localspec.engines.torch.vision.reader import Reader
from localspec.engines.torch.vision.replays import KEPT, STEP, Replays
from localspec.pictures.schedule import Decision, Schedule

VISUAL = range(5, 45)
DECISIONS = (Decision(1, 9), Decision(3, 9), Decision(6, 4))
SCHEDULES = [Schedule(DECISIONS), Schedule(DECISIONS, returns=False), Schedule()]


class Recorder:
    """Runs a pass again where a card would replay it."""

    recorded = 0

    def record(self, run: Any) -> Any:
        self.recorded += 1
        run()
        return run


@pytest.fixture(scope="module")
def reader(llava: Path) -> Reader:
    engine = Torch(llava, device="cpu")
    assert engine.seeing
    return engine.seeing.reader


def prompt(reader: Reader, count: int) -> tuple[Any, Any]:
    """Return embeddings [1, tokens, width] and positions of a prompt."""
    numbers = torch.Generator().manual_seed(count)
    return torch.randn(1, count, reader.shape.width, generator=numbers), torch.arange(count)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["reroute", "pdrop", "full"])
def test_replayed_prompts_are_those_read_one_by_one(reader: Reader, schedule: Schedule) -> None:
    recorder = Recorder()
    replays = Replays(reader, recorder)
    after = torch.randn(1, 3, reader.shape.width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for count in (50, 47, STEP, 46):  # one shape, with fewer and more pads than before
            found = []
            for read in (reader.read, replays.read):
                memory = reader.memory(2 * STEP)
                states = read(*prompt(reader, count), memory, VISUAL, schedule)
                assert states.shape[1] == count
                lengths = [*memory.lengths]
                more = reader.read(after, torch.arange(count, count + 3), memory)
                found.append((states, more, lengths))
            assert found[0][2] == found[1][2]
            for plain, replayed in zip(found[0][:2], found[1][:2], strict=True):
                assert (plain - replayed).abs().max() < 1e-4
    assert recorder.recorded == 1


def test_only_a_shape_that_comes_again_is_recorded(reader: Reader) -> None:
    recorder = Recorder()
    replays = Replays(reader, recorder)

    def read(count: int, schedule: Schedule) -> None:
        with torch.inference_mode():
            replays.read(*prompt(reader, count), reader.memory(4 * STEP), VISUAL, schedule)

    for schedule in SCHEDULES:
        read(50, schedule)
        read(STEP + 1, schedule)
    assert recorder.recorded == 0
    read(60, SCHEDULES[1])
    read(61, SCHEDULES[1])
    assert recorder.recorded == 1
    read(50, SCHEDULES[0])  # among more shapes than are kept, it was forgotten
    assert len(SCHEDULES) * 2 > KEPT
    assert recorder.recorded == 1
