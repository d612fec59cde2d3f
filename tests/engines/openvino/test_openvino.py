"""The OpenVINO engine on the real SmolLM2: rewinds, cache growth, threads, and the same answer."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
from memory import resident
from passes import read

from localspec import plugins
from localspec.core.contracts import DraftModel, Session
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampling
from localspec.core.types import Logits
from localspec.drafters.draft_model import ModelDraft
from localspec.engines.openvino import reader
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BrokenModel, ContextFull, UnknownDevice
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.ir import import_weights
from localspec.library import Silent, StoredModel

Make = Callable[..., OpenVino]
KV = ("f16", "f32", "u8")
SAMPLED = Sampling(temperature=0.8, top_k=40, top_p=0.95)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("kept", [31, 32, 33, 64])
def test_a_rewind_leaves_no_trace(engine: Make, text: list[int], kv: str, kept: int) -> None:
    used, fresh = engine(kv=kv).session(), engine(kv=kv).session()
    read(used, text[:kept], kept)
    fresh.forward(text[:kept], 0)
    rejected = used.forward(text[100:109], 9).copy()
    assert used.rewind(kept) == kept
    after, expected = read(used, text[kept : kept + 20], 4, 1), read(fresh, text[kept : kept + 20], 4, 1)
    assert np.abs(after - expected).max() == 0.0
    assert np.abs(rejected - expected[:9]).max() > 1.0  # the guesses were others


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped where")
def test_weights_that_were_packed_leave_memory(smollm2: StoredModel, text: list[int]) -> None:
    """Passes over one token read them anew, for a form of their own."""
    session = OpenVino(smollm2.folder, threads=2).session()
    for count in (20, 1, 1):
        session.forward(text[:count], 1)
    weights = (smollm2.folder / "openvino_model.bin").resolve()
    assert resident(weights) < 0.2 * weights.stat().st_size / 1024


def test_a_rewind_beyond_the_end_keeps_what_there_is(engine: Make, text: list[int]) -> None:
    session = engine().session()
    session.forward(text[:10], 0)
    assert session.rewind(99) == 10
    assert session.rewind(0) == 0
    assert np.array_equal(session.forward(text[:5], 5), engine().session().forward(text[:5], 5))


UNROUNDED: dict[str, Any] = {"group": 0, "kv": "f32"}  # what is read in pieces is then read alike


def test_a_cache_that_grows_forgets_nothing(
    engine: Make, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = (text * 2)[:300]
    monkeypatch.setattr(reader, "FIRST_BLOCKS", 1)  # of 32 tokens: four doublings
    rows = in_pieces(engine(**UNROUNDED).session(), tokens, 20, 30, 7, 60, 100)
    monkeypatch.setattr(reader, "FIRST_BLOCKS", 64)
    roomy = in_pieces(engine(**UNROUNDED).session(), tokens, 20, 30, 7, 60, 100)
    whole = engine(**UNROUNDED).session().forward(tokens, 30)
    assert np.array_equal(rows, roomy)
    assert np.abs(rows - whole).max() < 1e-3


def in_pieces(session: Session, tokens: Sequence[int], *sizes: int) -> Logits:
    """Read tokens in pieces of these sizes, then the rest; return the last 30 rows."""
    at = 0
    for size in sizes:
        session.forward(tokens[at : at + size], 0)
        at += size
    return session.forward(tokens[at:], 30)


def test_a_prompt_in_chunks_is_one_read(engine: Make, text: list[int]) -> None:
    pieces = Cursor(engine(**UNROUNDED).session(), chunk=50)
    whole = Cursor(engine(**UNROUNDED).session())
    assert np.abs(pieces.read(text, 3) - whole.read(text, 3)).max() < 1e-3


def test_only_the_last_rows_are_made(engine: Make, text: list[int]) -> None:
    every = engine().session().forward(text[:40], 40).copy()
    session = engine().session()
    last = session.forward(text[:40], 3)
    assert last.shape == (3, engine().vocab)
    assert np.array_equal(last, every[-3:])
    assert session.forward(text[40:45], 0).shape == (0, engine().vocab)
    assert session.forward([], 0).shape == (0, engine().vocab)


def test_sessions_in_two_threads_do_not_disturb_each_other(engine: Make, text: list[int]) -> None:
    texts = (text[:60], text[90:150])
    alone = [read(engine().session(), tokens, 20, 1, 3) for tokens in texts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda tokens: read(engine().session(), tokens, 20, 1, 3), texts))
    assert all(np.array_equal(left, right) for left, right in zip(alone, together, strict=True))


def test_a_full_context_names_both_numbers_and_harms_nothing(engine: Make, text: list[int]) -> None:
    session, other = engine().session(), engine().session()
    session.forward(text[:10], 0)
    with pytest.raises(ContextFull, match=r"8200 tokens .* holds 8192") as caught:
        session.forward([1] * 8190, 1)
    assert (caught.value.tokens, caught.value.context) == (8200, 8192)
    other.forward(text[:10], 0)
    assert np.array_equal(session.forward(text[10:15], 5), other.forward(text[10:15], 5))


def test_a_text_may_fill_the_context_to_its_last_token(
    smollm2: StoredModel, text: list[int], tmp_path: Path
) -> None:
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (tmp_path / name).symlink_to(smollm2.folder / name)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 100}')
    session = OpenVino(tmp_path).session()
    session.forward(text[:99], 0)
    assert session.forward(text[99:100], 1).shape[0] == 1
    with pytest.raises(ContextFull, match=r"101 tokens .* holds 100"):
        session.forward(text[100:101], 1)


@pytest.fixture(scope="module")
def single(engine: Make, text: list[int]) -> Callable[..., Logits]:
    """Return the rows of a text that was read one token at a time."""

    @cache
    def rows(count: int, **options: Any) -> Logits:
        return read(engine(**options).session(), text[:count], 1)

    return rows


@pytest.mark.parametrize("width", [2, 4, 8])
def test_unrounded_passes_of_any_width_agree(
    engine: Make, text: list[int], single: Callable[..., Logits], width: int
) -> None:
    one = single(200, group=0, kv="f32")
    several = read(engine(group=0, kv="f32").session(), text[:200], width)
    assert np.array_equal(one.argmax(axis=1), several.argmax(axis=1))
    assert np.abs(one - several).max() < 1e-3


@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize(("group", "tolerance"), [(0, parity.UNROUNDED), (32, parity.ROUNDED)])
def test_passes_of_any_width_agree_up_to_near_ties(
    engine: Make, text: list[int], single: Callable[..., Logits], group: int, tolerance: float, width: int
) -> None:
    one = single(80, group=group)
    several = read(engine(group=group).session(), text[:80], width)
    chosen = np.take_along_axis(one, several.argmax(axis=1)[:, None], axis=1)[:, 0]
    assert (one.max(axis=1) - chosen).max() < tolerance


Ask = Callable[..., Any]


def opened(engine: OpenVino, prompt: list[int]) -> Cursor:
    """Return a cursor that has read the prompt as the runtime reads it: up to its last token."""
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    return cursor


def drafters(engine: OpenVino, name: str, target: Cursor) -> Any:
    """Return a drafter; `itself` is the target as its own draft."""
    if name == "itself":
        return ModelDraft(target, DraftModel(engine, engine.vocab), name="itself")
    return plugins.parse("drafters", name).make(target)


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["ngram", "itself"])
@pytest.mark.parametrize("options", [{}, {"group": 0}], ids=["default", "group=0"])
def test_a_draft_does_not_change_the_text(
    engine: Make, ask: Ask, prompt: list[int], options: dict[str, int], draft: str, sampling: Sampling
) -> None:
    model = engine(**options)
    asked = {"prompt": prompt, "sampling": sampling, "seed": 7, "room": 40}
    plain = ask(opened(model, prompt), **asked)
    target = opened(model, prompt)
    drafted = ask(target, drafters(model, draft, target), **asked)
    assert sum(last.accepted for last in drafted.steps) > 0
    if options:
        assert drafted.tokens == plain.tokens
    shared = parity.check(
        plain.tokens,
        drafted.tokens,
        engine=model,
        prompt=prompt,
        tolerance=parity.ROUNDED,
        sampling=sampling,
        seed=7,
    )
    assert shared >= 4


def test_parity_sees_a_wrong_token(engine: Make, ask: Ask, prompt: list[int]) -> None:
    plain = ask(opened(engine(), prompt), prompt=prompt, room=8).tokens
    wrong = [*plain[:5], (plain[5] + 1000) % engine().vocab, *plain[6:]]
    for other in (wrong, plain[:5]):
        with pytest.raises(AssertionError):
            parity.check(plain, other, engine=engine(), prompt=prompt, tolerance=parity.ROUNDED)


def test_both_forms_of_the_offsets_give_the_same_text(
    smollm2_gguf: Path, ask: Ask, prompt: list[int], tmp_path: Path
) -> None:
    answers, sizes = [], []
    for offsets in (True, False):
        folder = tmp_path / str(offsets)
        folder.mkdir()
        assert import_weights(GgufFile.open(smollm2_gguf), folder, Silent(), offsets)["precision"] == "Q4_1"
        model = OpenVino(folder, group=0, kv="f32")
        answers.append(ask(opened(model, prompt), prompt=prompt, room=24).tokens)
        sizes.append((folder / "openvino_model.bin").stat().st_size)
        shutil.rmtree(folder)
    assert answers[0] == answers[1]
    assert sizes[0] < 0.8 * sizes[1]  # they are two forms


def test_an_unknown_device_names_those_there_are(smollm2: StoredModel) -> None:
    with pytest.raises(UnknownDevice, match="Unknown device `TPU`") as caught:
        OpenVino(smollm2.folder, device="TPU")
    assert "`CPU`" in (caught.value.hint or "")


def test_weights_that_were_cut_are_refused(smollm2: StoredModel, tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").symlink_to(smollm2.folder / "openvino_model.xml")
    weights = (smollm2.folder / "openvino_model.bin").read_bytes()
    (tmp_path / "openvino_model.bin").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(BrokenModel, match="openvino_model"):
        OpenVino(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="cannot be read") as caught:
        OpenVino(tmp_path)
    assert caught.value.hint
