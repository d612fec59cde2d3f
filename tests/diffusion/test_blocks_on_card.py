"""Blocks on a CUDA card: recorded passes, their facts, and the text of a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_diffusion
import torch
from asking import PROMPT, filled

from localspec.core.blocks import visibility
from localspec.core.blocks.pace import FixedPace, MeasuredPace
from localspec.core.blocks.types import Block
from localspec.core.rewind_check import rewind_fault
from localspec.core.sampler import Sampling
from localspec.decoder import capacity
from localspec.engines.diffusion import Diffusion
from localspec.engines.diffusion.own import Beside, OwnDiffusionSession, likeliest_of, widths

pytestmark = pytest.mark.cuda

MASK, NEAR = 39, 1e-3
TEXT = [int(token) for token in np.random.default_rng(0).integers(0, MASK, 60)]


def engine(folder: Path, device: str, layers: int = 2, block: int = 8, precision: str = "f32") -> Diffusion:
    place = folder / f"{layers}-{block}"
    if not place.exists():
        tiny_diffusion.write(place, "sdar", layers, block_size=block)
    return Diffusion(place, device=device, precision=precision)


def session_of(made: Diffusion) -> OwnDiffusionSession:
    found = made.session()
    assert isinstance(found, OwnDiffusionSession)
    return found


@pytest.mark.parametrize("block", [1, 4, 8])
def test_reads_and_rewinds_are_those_of_a_cpu(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 16)  # so that buffers move, and recordings with them
    plain, card = (engine(tmp_path, device, block=block).session() for device in ("cpu", "cuda"))
    numbers, length = np.random.default_rng(1), 0
    for kept, size in ((0, 5 * block), (3, 3), (2 * block, 2 * block), (block, 4 * block), (4 * block, 2)):
        length = min(length, kept)
        assert [each.rewind(length) for each in (plain, card)] == [length] * 2
        given = TEXT[length : length + size]
        given += TEXT[: -(length + len(given)) % block]
        for each in (plain, card):
            each.forward(given, 0)
        length += len(given)
        for copies in {1, 2, block, block + 3}:
            tokens = numbers.integers(0, 40, copies * block).tolist()
            table = visibility.apart(block, copies)
            places = [*range(length, length + block)] * copies
            read = Block(tokens, places, table, (copies - 1) * block)
            found = [np.array(each.denoise(read).logits) for each in (plain, card)]
            assert np.abs(found[0] - found[1]).max() < NEAR


def test_it_rewinds_exactly(tmp_path: Path) -> None:
    made = engine(tmp_path, "cuda")
    assert rewind_fault(made.session(), made.vocab) is None


@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_recorded_passes_are_those_that_run_as_they_are(tmp_path: Path, precision: str) -> None:
    session = session_of(engine(tmp_path, "cuda", precision=precision))
    session.forward(TEXT[:24], 0)
    session.denoise(Block([MASK] * 8, range(24, 32)))
    passes = session._passes
    for width in widths(8):
        tokens = [(7 * at) % 40 for at in range(width)]
        table = np.kron(np.eye(width // 8, dtype=bool), np.ones((8, 8), bool))
        shape = Beside([*range(24, 32)] * (width // 8), table)
        with torch.inference_mode():
            passes.short(tokens, shape, 24)
            recorded = passes.logits[:width].clone(), passes.facts[:width].clone()
            passes._pass(width, min(passes._decoder.first_end, passes.buffers.room))
            for kept, plain in zip(recorded, (passes.logits[:width], passes.facts[:width]), strict=True):
                assert torch.equal(kept, plain)


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_kernels_of_a_card_are_near_a_cpu(tmp_path: Path, precision: str) -> None:
    plain, card = (
        engine(tmp_path, device, precision=each).session()
        for device, each in (("cpu", "f32"), ("cuda", precision))
    )
    read = Block([MASK] * 24, [*range(40, 48)] * 3, visibility.apart(8, 3), 16)
    for each in (plain, card):
        each.forward(TEXT[:40], 0)
    found = [np.array(each.denoise(read).logits) for each in (plain, card)]
    assert np.abs(found[0] - found[1]).max() < 0.1 * found[0].std()


def test_the_kernel_of_facts_is_its_formula() -> None:
    from localspec.decoder.kernels import facts

    numbers = torch.Generator().manual_seed(0)
    for columns, mask in ((40, 39), (4096, 7), (49152, 4), (151936, 151669)):
        logits = torch.randn((20, columns), generator=numbers) * 8
        logits[3, mask] = 1000.0  # the mask is likeliest, and is left out
        logits[4] = logits[4].round()  # of equal ones the first
        logits[5, columns // 2] = 500.0
        logits[6, 1:] = float("-inf")
        found, wanted = facts.likeliest(logits.cuda(), mask).cpu(), likeliest_of(logits, mask)
        assert torch.equal(found[:, 0], wanted[:, 0])
        assert (found[:, 1:] - wanted[:, 1:]).abs().max() < 1e-4
    logits[7, 9] = float("nan")
    assert facts.likeliest(logits.cuda(), mask)[7, 1].isnan()


def test_texts_and_drafts_are_those_of_a_cpu(tmp_path: Path) -> None:
    for spec in ("left_to_right", "low_confidence", "entropy_bounded", "adas:k=2", "wino"):
        for sampling in (Sampling(), Sampling(temperature=0.8)):
            texts = [
                filled(engine(tmp_path, device), spec, sampling=sampling, seed=2, prompt=PROMPT[:5]).tokens
                for device in ("cpu", "cuda")
            ]
            assert texts[0] == texts[1], spec
    target, draft = engine(tmp_path, "cuda"), engine(tmp_path, "cuda", layers=1)
    plain = filled(target, "left_to_right", room=40)
    for pace in (FixedPace(2), FixedPace(8), MeasuredPace(stepwise=True)):
        assert filled(target, "left_to_right", draft=draft, pace=pace, room=40).tokens == plain.tokens


def test_greedy_choices_leave_the_rows_on_the_card(tmp_path: Path) -> None:
    session = session_of(engine(tmp_path, "cuda"))
    session.forward(TEXT[:16], 0)
    found: Any = session.denoise(Block([MASK] * 8, range(16, 24)))
    assert found.likeliest is not None
    assert found.logits._array._rows is None
    logits = np.array(found.logits)
    logits[:, MASK] = -np.inf
    assert found.likeliest.tokens.tolist() == logits.argmax(1).tolist()
