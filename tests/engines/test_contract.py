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

from localspec import plugins
from localspec.core.contracts import DraftModel, Engine
from localspec.core.cursor import Cursor
from localspec.core.rewind_check import rewind_fault
from localspec.core.types import Logits
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
    "npu": ("npu:device=CPU,prompt=256,response=128,texts=2",) * 2,
}
STATIC = ("npu",)  # compiled for so many tokens

every_engine = pytest.mark.parametrize("name", SPECS)
Make = Callable[..., Engine]
Ask = Callable[..., Any]


def test_every_engine_is_here() -> None:
    assert set(SPECS) == set(plugins.names("engines")) - {"toy"}


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
    near = 1e-3 if name == "torch" else 0.0  # its products round by the number of rows on some processors
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


@every_engine
def test_its_text_is_that_of_openvino(made: Make, ask: Ask, prompt: list[int], name: str) -> None:
    """Weights and arithmetic differ a little from engine to engine, so the first words are the same."""
    ours = ask(opened(made("openvino"), prompt), prompt=prompt, room=24).tokens
    theirs = ask(opened(made(name), prompt), prompt=prompt, room=24).tokens
    parity.check(ours, theirs, engine=made("openvino"), prompt=prompt, tolerance=2 * parity.ROUNDED)


def opened(engine: Engine, prompt: list[int]) -> Cursor:
    """Return a cursor that has read the prompt as the runtime reads it: up to its last token."""
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    return cursor


@pytest.mark.parametrize("name", [name for name in SPECS if name not in STATIC])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_all_engines_agree_with_the_formulas_in_float32(tmp_path: Path, family: str, name: str) -> None:
    model = tiny.make(family, "F32", interleaved=family == "llama")
    path = tiny.write_gguf(model, tmp_path / f"{family}.gguf")
    made = LoadSpec(
        plugins.parse("engines", SPECS[name][1]),
        Library(tmp_path / "home").resolve(str(path), Silent(), plugins.part("engines", name).made_by.forms),
    )
    session, tokens = made.load().session(), [at % tiny.VOCAB for at in range(5, 45)]
    expected = tiny.logits(model, tokens)
    found: Logits = np.concatenate(
        [session.forward(tokens[at : at + size], size).copy() for at, size in ((0, 30), (30, 1), (31, 9))]
    )
    assert np.abs(found - expected).max() < 2e-3
    assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))
