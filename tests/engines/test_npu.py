"""The NPU plug-in on its CPU emulation with the real SmolLM2: rewinds, splits, and a compiler that dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import parity
import pytest
from openvino import opset13 as ops

from localspec import plugins
from localspec.core.contracts import DraftModel, Engine
from localspec.core.cursor import Cursor
from localspec.core.types import Logits
from localspec.disk import records
from localspec.drafters.draft_model import ModelDraft
from localspec.engines.npu import engine as npu_engine
from localspec.engines.npu import trial as npu
from localspec.engines.npu.engine import Npu
from localspec.engines.npu.graph import group_wise, read_static, soften_mask
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import (
    BrokenModel,
    ContextFull,
    DriverFailed,
    PromptTooLong,
    UnknownDevice,
    UnsupportedModel,
)
from localspec.library import StoredModel

pytestmark = pytest.mark.engines

SIZES = {"device": "CPU", "prompt": 128, "response": 128, "width": 8}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the trials and compiled models of these tests."""
    return tmp_path_factory.mktemp("npu")


@pytest.fixture(scope="module")
def engine(smollm2: StoredModel, cache: Path) -> Npu:
    return Npu(smollm2.folder, cache, texts=2, **SIZES)


@pytest.fixture(scope="module")
def expected(smollm2: StoredModel, text: list[int]) -> Logits:
    """The rows of the text on the CPU in float32."""
    session = OpenVino(smollm2.folder, threads=2, group=0, kv="f32").session()
    return session.forward(text, len(text)).copy()


def near(found: Logits, expected: Logits) -> bool:
    """Return whether rows agree within what a float16 cache changes."""
    chosen = np.take_along_axis(expected, found.argmax(axis=1)[:, None], axis=1)[:, 0]
    return bool(np.abs(found - expected).max() < 0.3 and (expected.max(axis=1) - chosen).max() < 0.05)


def test_a_prefill_and_passes_are_those_of_the_cpu(engine: Npu, text: list[int], expected: Logits) -> None:
    session = engine.session()
    assert (engine.vocab, engine.context, engine.device) == (49152, 256, "CPU")
    assert near(session.forward(text[:50], 1), expected[49:50])
    at = 50
    for size in (1, 3, 8, 1, 5):
        assert near(session.forward(text[at : at + size], size), expected[at : at + size])
        at += size


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (1, 12)])
def test_a_text_may_begin_with_one_token(
    engine: Npu, text: list[int], expected: Logits, sizes: tuple[int, int]
) -> None:
    session, at = engine.session(), 0
    for _ in range(2):  # a second time behind the remains of the first
        for size in sizes:
            assert near(session.forward(text[at : at + size], size), expected[at : at + size])
            at += size
        at = session.rewind(0)


@pytest.mark.parametrize("rows", [1, 2, 9, 60])
def test_a_first_read_gives_as_many_rows_as_are_asked_for(
    engine: Npu, text: list[int], expected: Logits, rows: int
) -> None:
    found = engine.session().forward(text[:60], rows)
    assert (found.dtype, found.shape) == (np.float32, (rows, engine.vocab))
    assert near(found, expected[60 - rows : 60])


@pytest.mark.parametrize("kept", [1, 20, 60])
def test_a_rewind_leaves_no_trace(engine: Npu, text: list[int], kept: int) -> None:
    used, fresh = engine.session(), engine.session()
    used.forward(text[:60], 1)
    fresh.forward(text[:60], 1)
    for at in range(60, 116, 8):  # a long past, whose mask the plug-in keeps
        used.forward(text[at : at + 8], 1)
    assert used.rewind(kept) == kept
    used.forward(text[90:98], 8)  # guesses, rejected
    assert (used.rewind(kept), fresh.rewind(kept)) == (kept, kept)
    for size in (4, 1, 8):
        found, wanted = (
            used.forward(text[kept : kept + size], size),
            fresh.forward(text[kept : kept + size], size),
        )
        assert np.abs(found - wanted).max() == 0.0
        kept += size


def test_a_new_text_after_a_long_one_leaves_no_trace(engine: Npu, text: list[int]) -> None:
    used, fresh = engine.session(), engine.session()
    used.forward(text[:120], 1)
    used.forward(text[120:126], 6)
    assert used.rewind(0) == 0
    for one in (used, fresh):
        one.forward(text[10:30], 1)
    assert np.array_equal(used.forward(text[30:35], 5), fresh.forward(text[30:35], 5))


def test_a_next_turn_is_read_in_passes_or_anew(
    engine: Npu, text: list[int], expected: Logits, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []
    real = npu_engine.infer

    def noted(request: Any, tokens: list[int], past: int, mask: Any) -> Logits:
        calls.append((past, len(tokens)))
        return real(request, tokens, past, mask)

    monkeypatch.setattr(npu_engine, "infer", noted)
    session = engine.session()
    session.forward(text[:40], 1)
    assert near(session.forward(text[40:52], 10), expected[42:52])  # two passes: what a prefill would cost
    assert near(session.forward(text[52:100], 3), expected[97:100])  # six: dearer
    assert near(session.forward(text[100:150], 2), expected[148:150])  # longer than the prompt may be
    assert calls == [
        (0, 40),
        *((40, 8), (48, 4)),
        *((0, 98), (98, 2)),
        *((0, 128), (128, 8), (136, 8), (144, 6)),
    ]


def test_a_long_prompt_is_read_in_one_go(
    engine: Npu, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npu_engine, "PIECE", 30)
    pieces, whole = Cursor(engine.session(), chunk=30), engine.session()
    pieces.read(text[:100], rows=0)
    whole.forward(text[:100], 1)
    assert np.array_equal(pieces.read(text[:105], rows=5), whole.forward(text[100:105], 5))


def test_a_prompt_that_is_too_long_names_both_numbers_and_the_option(engine: Npu, text: list[int]) -> None:
    session, other = engine.session(), engine.session()
    session.forward(text[:129], 0)
    with pytest.raises(PromptTooLong, match=r"130 tokens .* compiled for 128") as caught:
        session.forward(text[129:133], 4)  # three of them guesses
    assert session.rewind(0) == 0
    assert (caught.value.tokens, caught.value.max_tokens) == (130, 128)
    assert caught.value.hint == "Choose `npu:prompt=1024`"
    for one in (session, other):
        one.forward(text[:128], 1)
    assert np.array_equal(session.forward(text[128:130], 2), other.forward(text[128:130], 2))


def test_a_text_fills_the_context_to_its_last_token(engine: Npu, text: list[int]) -> None:
    session, other = engine.session(), engine.session()
    tokens = (text * 2)[:260]
    for one in (session, other):
        one.forward(tokens[:128], 1)
    for at in range(128, 256, 8):
        session.forward(tokens[at : at + 8], 1)
    with pytest.raises(ContextFull, match=r"257 tokens .* holds 256") as caught:
        session.forward(tokens[256:257], 1)
    assert "npu:response" in (caught.value.hint or "")
    assert (session.rewind(255), session.forward(tokens[255:256], 1).shape[0]) == (255, 1)
    assert (session.rewind(100), other.rewind(100)) == (100, 100)  # the mask is as long as it can be
    assert np.array_equal(session.forward(tokens[100:108], 8), other.forward(tokens[100:108], 8))


@pytest.mark.parametrize("sessions", [2, 3])
def test_sessions_by_turns_do_not_disturb_each_other(
    engine: Npu, text: list[int], expected: Logits, sessions: int
) -> None:
    """The third shares a compiled model with one of the others: each of its turns is a prefill."""
    lengths = (60, 40, 20)[:sessions]
    cursors = [Cursor(engine.session()) for _ in lengths]
    for cursor, length in zip(cursors, lengths, strict=True):
        cursor.read(text[:length], rows=0)
    for more in (4, 8, 16):
        for cursor, length in zip(cursors, lengths, strict=True):
            assert near(cursor.read(text[: length + more], 4), expected[length + more - 4 : length + more])


def test_sessions_in_two_threads_do_not_disturb_each_other(
    engine: Npu, text: list[int], expected: Logits
) -> None:
    def right(length: int) -> bool:
        cursor = Cursor(engine.session())
        ends = range(length, length + 24, 6)
        return all(near(cursor.read(text[:end], 3), expected[end - 3 : end]) for end in ends)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(right, (50, 20))) == [True, True]


def test_an_interrupted_pass_is_read_again(
    engine: Npu, text: list[int], expected: Logits, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor, real = Cursor(engine.session()), npu_engine.infer

    def interrupted(*arguments: Any) -> Logits:
        real(*arguments)
        raise KeyboardInterrupt

    cursor.read(text[:40])
    monkeypatch.setattr(npu_engine, "infer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cursor.read([*text[:40], *text[80:84]], 4)
    monkeypatch.setattr(npu_engine, "infer", real)
    assert near(cursor.read(text[:44], 4), expected[40:44])


def test_a_pass_that_fails_is_told(engine: Npu, text: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    session, fresh = engine.session(), engine.session()
    session.forward(text[:20], 1)
    fresh.forward(text[:20], 1)
    monkeypatch.setattr(engine, "plan", replace(engine.plan, width=16))  # above what was compiled
    with pytest.raises(DriverFailed, match=r"cannot read 12 tokens: .*") as caught:
        session.forward(text[20:32], 1)
    assert caught.value.hint == npu.OTHERWISE
    monkeypatch.undo()
    assert near(session.forward(text[20:24], 4), fresh.forward(text[20:24], 4))


@pytest.mark.parametrize("draft", ["ngram", "itself"])
def test_a_draft_does_not_change_the_text(
    engine: Npu, ask: Callable[..., Any], prompt: list[int], draft: str
) -> None:
    plain = ask(opened(engine, prompt), prompt=prompt, room=16)
    target = opened(engine, prompt)
    if draft == "itself":
        source: Any = ModelDraft(target, DraftModel(engine, engine.vocab), name="itself")
    else:
        source = plugins.parse("drafters", draft).make(target)
    drafted = ask(target, source, prompt=prompt, room=16)
    assert sum(last.accepted for last in drafted.steps) > 8
    parity.check(plain.tokens, drafted.tokens, engine=engine, prompt=prompt, tolerance=parity.UNROUNDED)


def opened(engine: Engine, prompt: list[int]) -> Cursor:
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    return cursor


def trial_of(cache: Path) -> dict[str, Any]:
    (file,) = (cache / "npu-trials").glob("*.json")
    return records.read(file)


@pytest.fixture
def tried(smollm2: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Try the model out with a child that runs the given Python, with an empty cache."""

    def run(script: str) -> None:
        monkeypatch.setattr(npu, "CHILD", (sys.executable, "-c", script))
        npu.try_out(npu.core_of("CPU"), smollm2.folder, npu.Plan(**SIZES), tmp_path)

    return run


Tried = Callable[[str], None]
GOES = "open('{}', 'a').write('x')"
DIES = "import os, sys; print('LLVM ERROR: out of tiles', file=sys.stderr, flush=True); os.abort()"


def test_a_compiler_that_dies_does_not_take_us_along(tried: Tried, tmp_path: Path) -> None:
    with pytest.raises(DriverFailed, match=r"gave up on .*: LLVM ERROR: out of tiles \(SIGABRT\)") as caught:
        tried(DIES)
    hint = caught.value.hint or ""
    assert hint.startswith("Choose `--engine openvino`; to try again, delete `")
    (file,) = (tmp_path / "npu-trials").glob("*.json")
    assert str(file) in hint
    assert trial_of(tmp_path)["works"] is False


def test_a_verdict_is_not_sought_twice(tried: Tried, tmp_path: Path) -> None:
    count = tmp_path / "count"
    for _ in range(2):
        tried(GOES.format(count))
    assert count.read_text() == "x"
    assert trial_of(tmp_path)["works"] is True
    tried(DIES)  # nobody asks it


def test_a_failed_verdict_is_kept_until_it_is_deleted(tried: Tried, tmp_path: Path) -> None:
    for script in (DIES, "pass"):
        with pytest.raises(DriverFailed, match="out of tiles"):
            tried(script)
    for file in (tmp_path / "npu-trials").iterdir():
        file.unlink()
    tried("pass")


@pytest.mark.parametrize("change", ["model", "options"])
def test_another_model_or_option_is_tried_anew(
    smollm2: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(npu, "CHILD", (sys.executable, "-c", GOES.format(tmp_path / "count")))
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).write_bytes(b"1")
    npu.try_out(npu.core_of("CPU"), tmp_path, npu.Plan(**SIZES), tmp_path / "cache")
    if change == "model":
        os.utime(tmp_path / "openvino_model.bin", (1, 1))
    sizes = SIZES | ({"width": 4} if change == "options" else {})
    npu.try_out(npu.core_of("CPU"), tmp_path, npu.Plan(**sizes), tmp_path / "cache")
    assert (tmp_path / "count").read_text() == "xx"


def test_a_compiler_that_refuses_says_why(smollm2: StoredModel, tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    said = npu.last_words(tmp_path, npu.Plan(**SIZES), None)
    assert said is not None
    assert "cannot be read" in said
    assert said.endswith("(status 1)")


def test_the_real_child_came_to_a_verdict(engine: Npu, cache: Path) -> None:
    found = [records.read(file) for file in (cache / "npu-trials").glob("*.json")]
    assert SIZES in [known["plan"] for known in found if known["works"]]


def weights(groups: int, kind: Any = ov.Type.i4) -> ov.Model:
    """Return x times 4-bit weights [16, 64] with so many scales a row."""
    x = ops.parameter(ov.PartialShape([-1, 64]), ov.Type.f32)
    shape = [16, groups, 64 // groups] if groups > 1 else [16, 64]
    codes = ops.constant(ov.Tensor(np.zeros(16 * 64 // 2, np.uint8), ov.Shape(shape), kind))
    scale = ops.constant(np.ones([*shape[:-1], 1], np.float16))
    y = ops.convert(ops.multiply(ops.convert(codes, "f16"), scale), "f32")
    if groups > 1:
        y = ops.reshape(y, ops.constant(np.array([16, 64])), False)
    return ov.Model([ops.matmul(x, y, False, True)], [x], "weights")


@pytest.mark.parametrize("kind", [ov.Type.i4, ov.Type.u4])
def test_weights_in_groups_are_told_from_those_by_rows(kind: Any) -> None:
    assert group_wise(weights(1, kind)) is None
    assert group_wise(weights(4, kind)) is not None


def test_a_real_model_in_groups_is_seen_and_refused_on_an_npu(
    smollm2: StoredModel, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    assert group_wise(read_static(smollm2.folder / "openvino_model.xml")) is not None
    monkeypatch.setattr(npu_engine, "core_of", lambda device: ov.Core())
    with pytest.raises(UnsupportedModel, match="weights in groups") as caught:
        Npu(smollm2.folder, device="NPU")
    assert caught.value.hint == npu_engine.channel_wise()


def test_a_mask_that_float16_cannot_hold_is_softened() -> None:
    x = ops.parameter(ov.PartialShape([-1]), ov.Type.f32)
    model = ov.Model([ops.maximum(x, ops.constant(np.float32(np.finfo(np.float32).min)))], [x], "mask")
    soften_mask(model)
    found = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(
        np.array([-1e30, 5], np.float32)
    )
    assert found[0].tolist() == [-65504.0, 5.0]


def test_an_absent_npu_is_told(smollm2: StoredModel) -> None:
    for device in ("NPU", "NPU.7", "TPU"):
        with pytest.raises(UnknownDevice, match=f"Unknown device `{device}`") as caught:
            Npu(smollm2.folder, device=device)
        assert "`CPU`" in (caught.value.hint or "")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="cannot be read"):
        Npu(tmp_path, device="CPU")
