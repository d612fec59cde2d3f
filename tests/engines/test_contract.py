"""The promises of every engine, on the real SmolLM2 in the form it reads, and one answer from all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import tiny
from passes import read

from localspec import plugins
from localspec.core.contracts import DraftModel, Engine, Read, TreeSession
from localspec.core.cursor import Cursor
from localspec.core.rewind_check import rewind_fault, width_fault
from localspec.core.types import Branch, Logits
from localspec.drafters.draft_model import ModelDraft
from localspec.errors import ContextFull
from localspec.library import Library, Silent, StoredModel
from localspec.runtime.loading import LoadSpec

pytestmark = pytest.mark.engines

# An engine as its users have it, and as exact as it can be.
SPECS = {
    "openvino": ("openvino", "openvino:group=0,kv=f32"),
    "llamacpp": ("llamacpp:device=CPU", "llamacpp:device=CPU,kv=f32,flash=off"),
    "torch": ("torch:device=cpu", "torch:device=cpu,precision=f32"),
    "torch, own decoder": ("torch:device=cpu,decoder=own", "torch:device=cpu,decoder=own,precision=f32"),
    "npu": ("npu:device=CPU,prompt=256,response=128,texts=2",) * 2,
}
STATIC = ("npu",)  # compiled for so many tokens

every_engine = pytest.mark.parametrize("name", SPECS)
Make = Callable[..., Engine]
Ask = Callable[..., Any]


def test_every_engine_is_here() -> None:
    tested = {spec.split(":")[0] for spec, _ in SPECS.values()}
    assert tested == set(plugins.names("engines")) - {"toy", "diffusion"}  # those run no SmolLM2


@pytest.fixture(scope="module")
def made(smollm2: StoredModel) -> Make:
    """Return SmolLM2 on an engine, made once."""

    @cache
    def make(name: str, exact: bool = False) -> Engine:
        return LoadSpec(plugins.parse("engines", SPECS[name][exact]), smollm2).load()

    return make


@every_engine
def test_it_says_what_it_is(made: Make, name: str) -> None:
    engine = made(name)
    assert engine.vocab == 49152
    assert engine.context == 8192 or name in STATIC
    assert engine.device.lower() == "cpu"


@every_engine
def test_its_rewind_holds(made: Make, name: str) -> None:
    engine = made(name)
    for kept in (12, 100):
        assert rewind_fault(engine.session(), engine.vocab, kept) is None


@every_engine
def test_only_the_last_rows_come_back(made: Make, text: list[int], name: str) -> None:
    session, other = made(name).session(), made(name).session()
    session.forward(text[:20], 0)
    other.forward(text[:20], 0)
    every = session.forward(text[20:24], 4).copy()
    last = other.forward(text[20:24], 2)
    assert (every.dtype, every.shape, last.shape) == (np.float32, (4, 49152), (2, 49152))
    near = (
        1e-3 if name.startswith("torch") else 0.0
    )  # products round by the number of rows on some processors
    assert np.abs(last - every[-2:]).max() <= near
    assert other.forward(text[24:26], 0).shape == (0, 49152)


@every_engine
def test_a_full_context_changes_nothing(made: Make, text: list[int], name: str) -> None:
    engine = made(name)
    session, other = engine.session(), engine.session()
    for one in (session, other):
        one.forward(text[:10], 0)
    with pytest.raises(ContextFull, match=f"holds {engine.context}"):
        session.forward([1] * engine.context, 1)
    assert np.array_equal(session.forward(text[10:13], 3), other.forward(text[10:13], 3))


@every_engine
@pytest.mark.parametrize("draft", ["ngram", "itself"])
def test_a_draft_does_not_change_the_text(
    made: Make, ask: Ask, prompt: list[int], name: str, draft: str
) -> None:
    engine = made(name)
    plain = ask(opened(engine, prompt), prompt=prompt, room=32)
    target = opened(engine, prompt)
    source = (
        ModelDraft(target, DraftModel(engine, engine.vocab), name="itself")
        if draft == "itself"
        else plugins.parse("drafters", draft).make(target)
    )
    drafted = ask(target, source, prompt=prompt, room=32)
    assert sum(last.accepted for last in drafted.steps) > 8
    parity.check(plain.tokens, drafted.tokens, engine=engine, prompt=prompt, tolerance=parity.ROUNDED)


ROUNDED_ONCE = 0.25  # of the logits' spread: an activation of llama.cpp's that falls to another of its 8 bits
TREES = [name for name in SPECS if name not in STATIC]
BRANCHES = [Branch(9, 0), Branch(30, 0), Branch(31, 4), Branch(32, 2), Branch(33, 5)]  # after three rows


@pytest.mark.parametrize("name", TREES)
def test_branches_tell_what_follows_and_leave_the_text_alone(made: Make, text: list[int], name: str) -> None:
    engine = made(name, exact=True)
    session = engine.session()
    assert isinstance(session, TreeSession)
    session.forward(text[:40], 0)
    rows = session.forward_tree(text[40:43], 3, BRANCHES).copy()
    after = session.forward(text[43:50], 7).copy()
    told = [[*text[:41], 9], [*text[:41], 30], [*text[:41], 30, 31], [*text[:43], 32]]
    told.append([*told[2], 33])
    expected = [engine.session().forward(each, 1)[0].copy() for each in told]
    plain = read(engine.session(), text[:50], 40, 3, 7)
    spread = float(plain.std())
    assert np.abs(rows[:3] - plain[40:43]).max() < 0.01 * spread
    assert np.abs(rows[3:] - np.stack(expected)).max() < ROUNDED_ONCE * spread
    assert np.abs(rows[4] - expected[0]).max() > 2 * ROUNDED_ONCE * spread  # as far as another text is
    assert np.abs(after - plain[43:]).max() < 0.01 * spread


def test_rows_beside_branches_are_those_of_plain_decoding_to_the_bit_on_openvino(
    made: Make, text: list[int]
) -> None:
    engine = made("openvino")
    session, plain = engine.session(), read(engine.session(), text[:48], 40, 1)
    assert isinstance(session, TreeSession)
    session.forward(text[:40], 0)
    equal = [
        np.array_equal(session.forward_tree(text[at : at + 2], 2, BRANCHES[:3])[:2], plain[at : at + 2])
        for at in range(40, 48, 2)
    ]
    assert all(equal) == (width_fault(engine.session(), engine.vocab) is None)


@pytest.mark.parametrize("name", TREES)
def test_texts_with_branches_share_passes(made: Make, text: list[int], name: str) -> None:
    engine = made(name, exact=True)
    shared = engine.shared_passes(3)
    assert shared is not None
    sessions = [shared.session() for _ in range(3)]
    if not all(isinstance(session, TreeSession) for session in sessions):
        assert name.startswith("torch")  # its batches have a row for each text
        return
    shared.forward([Read(each, text[at : at + 20], 0) for at, each in enumerate(sessions)])
    reads = [Read(each, text[at + 20 : at + 23], 3, BRANCHES[at:2]) for at, each in enumerate(sessions)]
    found = [rows.copy() for rows in shared.forward(reads)]
    for at, rows in enumerate(found):
        alone = engine.session()
        assert isinstance(alone, TreeSession)
        alone.forward(text[at : at + 20], 0)
        expected = alone.forward_tree(text[at + 20 : at + 23], 3, BRANCHES[at:2])
        assert rows.shape == expected.shape
        assert np.abs(rows - expected).max() < ROUNDED_ONCE * float(expected.std())


@every_engine
def test_its_text_is_that_of_openvino(made: Make, ask: Ask, prompt: list[int], name: str) -> None:
    """Weights and arithmetic differ a little from engine to engine, so the first words are the same."""
    ours = ask(opened(made("openvino"), prompt), prompt=prompt, room=24).tokens
    theirs = ask(opened(made(name), prompt), prompt=prompt, room=24).tokens
    parity.check(ours, theirs, engine=made("openvino"), prompt=prompt, tolerance=2 * parity.ROUNDED)


def shared_and_apart(engine: Engine, text: list[int], widths: list[int]) -> list[tuple[Logits, Logits]]:
    """Return logits of three texts in shared passes, and in passes of their own, with rewinds between."""
    shared, random = engine.shared_passes(3), np.random.default_rng(0)
    assert shared is not None
    together, apart, at = [shared.session() for _ in range(3)], [engine.session() for _ in range(3)], [0] * 3
    found: list[tuple[Logits, Logits]] = []
    for _ in range(16):
        chosen = [one for one in range(3) if random.random() < 0.7] or [0]
        reads = []
        for one in chosen:
            start = 40 * one + at[one]
            tokens = text[start : start + random.choice(widths)]
            reads.append(Read(together[one], tokens, int(random.integers(0, len(tokens) + 1))))
            at[one] += len(tokens)
        rows = [logits.copy() for logits in shared.forward(reads)]
        own = [
            apart[one].forward(read.tokens, read.rows).copy() for one, read in zip(chosen, reads, strict=True)
        ]
        found += zip(rows, own, strict=True)
        for one in chosen:
            at[one] = max(at[one] - int(random.integers(0, 4)), 0)
            assert together[one].rewind(at[one]) == at[one]
            assert apart[one].rewind(at[one]) == at[one]
    return found


SHARED = [name for name in SPECS if name not in STATIC]


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_pass_is_as_good_as_one_for_each_text(tmp_path: Path, name: str) -> None:
    """In float32, since int8 activations round by the tokens beside them."""
    text = [at * at % tiny.VOCAB for at in range(300)]
    for rows, own in shared_and_apart(on_float32(tmp_path, "qwen2", name), text, [1, 1, 2, 3, 9]):
        assert rows.shape == own.shape
        assert np.abs(rows - own).max(initial=0) < 2e-3


def test_openvino_shares_passes_to_the_bit(made: Make, text: list[int]) -> None:
    found = shared_and_apart(made("openvino"), text, [1, 1, 2, 3, 9])
    assert any(len(rows) for rows, _ in found)
    assert all(np.array_equal(rows, own) for rows, own in found)


@pytest.mark.parametrize("name", SHARED)
def test_a_text_that_ends_leaves_its_place(made: Make, text: list[int], name: str) -> None:
    shared = made(name).shared_passes(2)
    assert shared is not None
    first = shared.session()
    first.forward(text[:30], 0)
    expected = first.forward(text[30:34], 2).copy()
    for _ in range(8):
        other = shared.session()
        other.forward(text[:30], 0)
        assert np.array_equal(other.forward(text[30:34], 2), expected)
        del other
    with pytest.raises(ContextFull):
        shared.forward([Read(first, text[:3], 1), Read(shared.session(), [1] * 9000, 0)])
    assert first.rewind(30) == 30
    assert np.array_equal(first.forward(text[30:34], 2), expected)


@pytest.mark.parametrize("name", STATIC)
def test_an_engine_of_fixed_shapes_reads_one_text_in_a_pass(made: Make, name: str) -> None:
    assert made(name).shared_passes(2) is None


def opened(engine: Engine, prompt: list[int]) -> Cursor:
    """Return a cursor that has read the prompt as the runtime reads it: up to its last token."""
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    return cursor


@pytest.mark.parametrize("name", [name for name in SPECS if name not in STATIC])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_all_engines_agree_with_the_formulas_in_float32(tmp_path: Path, family: str, name: str) -> None:
    model = tiny.make(family, "F32", interleaved=family == "llama")
    session, tokens = on_float32(tmp_path, family, name).session(), [at % tiny.VOCAB for at in range(5, 45)]
    expected = tiny.logits(model, tokens)
    found: Logits = np.concatenate(
        [session.forward(tokens[at : at + size], size).copy() for at, size in ((0, 30), (30, 1), (31, 9))]
    )
    assert np.abs(found - expected).max() < 2e-3
    assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))


def on_float32(folder: Path, family: str, name: str) -> Engine:
    """Return an engine with a tiny model, both in float32."""
    model = tiny.make(family, "F32", interleaved=family == "llama")
    path, spec = tiny.write_gguf(model, folder / f"{family}.gguf"), plugins.parse("engines", SPECS[name][1])
    stored = Library(folder / "home").resolve(str(path), Silent(), spec.part.made_by.forms)
    return LoadSpec(spec, stored).load()
