"""Passes of a head in fixed shapes, as a card records them, and states that stay on the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from random_heads import random_tensors, write_head

from localspec.core.types import DeviceRow, Logits
from localspec.engines.torch.decoder.states import OnDevice
from localspec.engines.torch.engine import Torch
from localspec.engines.torch.head import TorchHeadSession

pytestmark = pytest.mark.engines

NUMBERS = np.random.default_rng(3)
STATES = NUMBERS.normal(size=(300, 3 * tiny.WIDTH)).astype(np.float32)
TOKENS = [int(token) for token in NUMBERS.integers(0, tiny.VOCAB, 300)]


class Repeats:
    """A recorder whose replay runs the pass anew."""

    def record(self, run: Callable[[], Any]) -> Callable[[], Any]:
        return run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    (folder / "target").mkdir()
    target = tiny.write_folder(tiny.make("llama"), folder / "target", vocab_size=tiny.VOCAB)
    return {"model": write_head(folder / "head", random_tensors()), "target": target}


def session(
    files: dict[str, Path], device: str = "cpu", precision: str = "f32", *, recorded: bool = False
) -> TorchHeadSession:
    engine = Torch(files["model"], target=str(files["target"]), device=device, precision=precision)
    assert engine.head is not None
    if recorded:
        engine.head._recorder = Repeats()  # type: ignore[assignment]
    found = engine.session()
    assert isinstance(found, TorchHeadSession)
    return found


def read(head: TorchHeadSession, first: int, last: int, rows: int = 1) -> Logits:
    """Let the head read some of TOKENS with the states before them; the logits are copied."""
    head.lead(head.fuse(STATES[first:last]))
    return np.array(head.forward(TOKENS[first:last], rows))


def guess(head: TorchHeadSession, token: int) -> Logits:
    head.lead(head.own()[-1:].copy())
    return np.array(head.forward([token], 1))


def walk(head: TorchHeadSession) -> list[Logits]:
    """Read, guess and rewind, over widths that are padded, buffers that move and a pass that is long."""
    found = [read(head, 0, 3, 2), guess(head, 7), guess(head, 9), guess(head, 11)]
    assert head.rewind(3) == 3
    found += [read(head, 3, 8), guess(head, 5)]
    head.rewind(8)
    found += [read(head, 8, 60, 5), read(head, 60, 61), guess(head, 1)]
    head.rewind(61)
    for at in range(61, 250, 16):  # past the first 256 slots of a recorded pass
        found.append(read(head, at, at + 16, 3))
    head.rewind(12)
    return [*found, read(head, 12, 13), guess(head, 2)]


def test_padded_passes_give_what_plain_ones_give(files: dict[str, Path]) -> None:
    plain, padded = walk(session(files)), walk(session(files, recorded=True))
    for left, right in zip(plain, padded, strict=True):
        assert left.shape == right.shape
        assert np.abs(left - right).max() < 1e-4


def test_greedy_guesses_need_no_row(files: dict[str, Path]) -> None:
    head = session(files, recorded=True)
    head.lead(head.fuse(STATES[:4]))
    row = head.forward(TOKENS[:4], 1)[0]
    assert isinstance(row, DeviceRow)
    assert row.best == np.array(row).argmax()
    assert row.weight == pytest.approx(np.exp(np.array(row) - row.highest).sum(), rel=1e-4)


def test_states_of_the_target_stay_on_its_device(files: dict[str, Path]) -> None:
    here, there = session(files), session(files)
    fused = there.fuse(OnDevice(torch.from_numpy(STATES[:5])))  # type: ignore[arg-type]
    assert isinstance(fused, OnDevice)
    assert np.array_equal(np.array(fused), np.array(here.fuse(STATES[:5])))


def test_a_text_takes_over_the_passes_of_one_that_ended(files: dict[str, Path]) -> None:
    engine = Torch(files["model"], target=str(files["target"]), device="cpu", precision="f32")
    assert engine.head is not None
    first, other = engine.session(), engine.session()
    assert isinstance(first, TorchHeadSession)
    assert isinstance(other, TorchHeadSession)
    passes, rows = first._passes, read(first, 0, 9)
    assert other._passes is not passes
    del first
    after = engine.session()
    assert isinstance(after, TorchHeadSession)
    assert after._passes is passes
    assert np.array_equal(rows, read(after, 0, 9))


@pytest.mark.cuda
@pytest.mark.parametrize(("precision", "near"), [("f32", 2e-3), ("f16", 1e-2), ("bf16", 6e-2)])
def test_a_card_replays_what_a_processor_computes(
    files: dict[str, Path], precision: str, near: float
) -> None:
    for left, right in zip(walk(session(files)), walk(session(files, "cuda", precision)), strict=True):
        assert np.abs(left - right).max() < near * max(1.0, np.abs(left).max())


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_card_knows_what_greedy_guesses_need(files: dict[str, Path], precision: str) -> None:
    head = session(files, "cuda", precision)
    for first, last in ((0, 4), (4, 5), (5, 40)):
        head.lead(head.fuse(STATES[first:last]))
        row = head.forward(TOKENS[first:last], 1)[0]
        assert isinstance(row, DeviceRow)
        whole = np.array(row)
        assert row.best == whole.argmax()
        assert row.highest == pytest.approx(whole.max(), rel=1e-6)
        assert row.weight == pytest.approx(np.exp(whole - whole.max()).sum(), rel=1e-3)
