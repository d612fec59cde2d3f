"""Passes of fixed shapes: their widths, how far they attend, buffers that grow, and what stays of a text."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from passes import check_rewinds, read

from localspec.core.contracts import HiddenStates, LayerStates, TreeSession
from localspec.core.types import Branch
from localspec.decoder import capacity
from localspec.decoder.forward import Decoder
from localspec.decoder.passes import WIDTHS, Passes, bucket
from localspec.engines.torch.engine import Torch
from localspec.errors import BadValue, ContextFull

pytestmark = pytest.mark.engines

TEXT = [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 250)]
NEAR = 1e-4  # logits, in float32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tiny.make("qwen3"), tmp_path_factory.mktemp("qwen3"), vocab_size=tiny.VOCAB)


@pytest.fixture(scope="module")
def expected() -> Any:
    return tiny.logits(tiny.make("qwen3"), TEXT)


def own(model: Path, **options: Any) -> Torch:
    return Torch(model, device="cpu", decoder="own", **options)


def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the list of the shapes that passes get ready for."""
    seen: list[tuple[int, int]] = []
    record = Passes._record

    def noted(self: Passes, width: int, end: int) -> None:
        seen.append((width, end))
        record(self, width, end)

    monkeypatch.setattr(Passes, "_record", noted)
    return seen


def test_passes_have_few_shapes_each_made_once(
    model: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = shapes(monkeypatch)
    monkeypatch.setattr(Decoder, "first_end", 32)
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 64)
    session, at = own(model).session(), 0
    for width in (1, 5, 10, 1, 3, 12, 1, 2, 15, 10, 1):
        rows = session.forward(TEXT[at : at + width], width).copy()
        assert np.abs(rows - expected[at : at + width]).max() < NEAR
        at += width
    assert {width for width, _ in seen} <= set(WIDTHS)
    assert {end for _, end in seen} == {32, 64}
    assert len(seen) == len(set(seen))
    session.forward(TEXT[at : at + 10], 1)  # beyond the buffers, which move
    before = len(seen)
    session.rewind(1)
    session.forward(TEXT[1:2], 1)
    assert seen[before:] == [(1, 32)]  # so that what was recorded over the old ones is made again


def test_attention_ends_at_a_power_of_two() -> None:
    assert [bucket(total, 128) for total in (1, 128, 129, 257, 4000)] == [128, 128, 256, 512, 4096]


def test_any_widths_and_rewinds_give_the_rows_of_one_pass(model: Path, expected: Any) -> None:
    check_rewinds(own(model).session(), TEXT, expected, NEAR)


def test_a_rewind_leaves_no_trace_to_the_bit(model: Path) -> None:
    engine = own(model)
    for kept in (5, 120, 130):
        used, fresh = engine.session(), engine.session()
        read(used, TEXT[:kept], kept)
        fresh.forward(TEXT[:kept], 0)
        for guesses in ([1] * 9, [2] * 30, [3]):
            used.forward(guesses, 1)
            assert used.rewind(kept) == kept
        after, plain = (read(one, TEXT[kept : kept + 20], 4, 1) for one in (used, fresh))
        assert np.array_equal(after, plain)
        assert used.rewind(999) == kept + 20


def test_only_the_last_rows_come_back(model: Path, expected: Any) -> None:
    session = own(model).session()
    assert session.forward(TEXT[:30], 0).shape == session.forward([], 0).shape == (0, tiny.VOCAB)
    for first, last, rows in ((30, 35, 2), (35, 70, 3), (70, 71, 1), (71, 74, 0)):
        found = session.forward(TEXT[first:last], rows)
        assert (found.shape, found.dtype) == ((rows, tiny.VOCAB), np.float32)
        assert np.abs(found - expected[last - rows : last]).max(initial=0) < NEAR


@pytest.mark.parametrize("before", [0, 40, 120])
@pytest.mark.parametrize("count", [3, 20])
def test_branches_are_read_beside_the_text(model: Path, before: int, count: int) -> None:
    session, plain = own(model).session(), Torch(model, device="cpu").session()
    assert isinstance(session, TreeSession)
    assert isinstance(plain, TreeSession)
    branches = [Branch(9, 0), Branch(30, 0), Branch(31, 4), Branch(32, 2), Branch(33, 5)]
    found = []
    for one in (session, plain):
        one.forward(TEXT[:before], 0)
        rows = one.forward_tree(TEXT[before : before + count], 3, branches).copy()
        found.append(np.concatenate([rows, one.forward(TEXT[before + count : before + count + 4], 4)]))
    assert found[0].shape == (3 + 5 + 4, tiny.VOCAB)
    assert np.abs(found[0] - found[1]).max() < NEAR


def test_hidden_states_are_those_of_transformers(model: Path) -> None:
    for options in ({"hidden": True}, {"taps": "1-2"}):
        sessions: list[Any] = [
            own(model, **options).session(),
            Torch(model, device="cpu", **options).session(),
        ]  # type: ignore[arg-type]
        for one in sessions:
            read(one, TEXT[:60], 20, 1, 5)
            one.rewind(50)
            one.forward(TEXT[50:52], 1)
        kind = HiddenStates if "hidden" in options else LayerStates
        assert all(isinstance(one, kind) for one in sessions)
        ours, theirs = (one.hidden() if kind is HiddenStates else one.states() for one in sessions)
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 0.01 * theirs.std()
    with pytest.raises(BadValue, match=r"layer 3: the model has 2"):
        own(model, taps="1-3")


def test_buffers_of_a_text_that_ended_serve_the_next(model: Path, expected: Any) -> None:
    engine = own(model)
    first = engine.session()
    first.forward(TEXT[:200], 1)
    buffers = first._passes.buffers  # type: ignore[attr-defined]
    del first
    gc.collect()
    second, third = engine.session(), engine.session()
    assert second._passes.buffers is buffers  # type: ignore[attr-defined]
    assert third._passes.buffers is not buffers  # type: ignore[attr-defined]
    for session in (second, third):
        assert np.abs(read(session, TEXT[:40], 20, 3) - expected[:40]).max() < NEAR


def test_a_text_fills_its_context(model: Path, expected: Any) -> None:
    session = own(model).session()
    session.forward(TEXT[:249], 0)
    assert np.abs(session.forward(TEXT[249:], 1) - expected[249:]).max() < NEAR
    with pytest.raises(ContextFull, match=r"257 tokens .* holds 256"):
        session.forward([1] * 7, 1)
    for width in (5, 1):
        assert session.forward([1] * width, width).shape == (width, tiny.VOCAB)


def test_an_interrupted_pass_leaves_no_trace(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = own(model)
    session, fresh = engine.session(), engine.session()
    for one in (session, fresh):
        one.forward(TEXT[:20], 0)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Passes, "_pass", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.forward([1, 2, 3], 3)
    assert session.rewind(20) == 20
    assert np.array_equal(session.forward(TEXT[20:24], 4), fresh.forward(TEXT[20:24], 4))
