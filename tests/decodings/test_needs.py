"""The needs of drafters and decodings from the target's engine, through the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from localspec.core.contracts import EarlyExit, HiddenStates
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.graph import paged
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.runtime.loading import LoadSpec

PROMPT = [*range(3, 20)]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Library()


@pytest.fixture
def gguf(tmp_path: Path) -> str:
    return str(tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "small.gguf"))


def answered(runtime: Runtime, prompt: list[int]) -> list[int]:
    answer, steps = runtime.answer(prompt, sampling=Sampling(), max_tokens=24)
    assert all(last.tokens for last in steps)
    return answer.token_ids


def test_an_exit_is_made_for_the_drafter_and_leaves_the_text_as_it_is(library: Library, gguf: str) -> None:
    engine = "openvino:group=0,kv=f32"
    choice = Choice(engine, draft="early_exit:layer=1", draft_length="fixed:tokens=3")
    drafted, plain = (
        Runtime.load(gguf, chosen, library, Silent()) for chosen in (choice, Choice(engine, draft="off"))
    )
    assert str(drafted.resolution.target.spec) == "openvino:group=0,kv=f32,exit=1"
    assert isinstance(drafted.target.session, EarlyExit)
    assert drafted.lossless
    for prompt in (PROMPT, [*PROMPT, 40, 41], PROMPT[:9], [50, 51]):
        assert answered(drafted, prompt) == answered(plain, prompt)


def test_a_layer_that_is_not_there_is_refused_before_anything_is_compiled(
    library: Library, gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.resolve(gguf, Silent())
    monkeypatch.setattr(paged, "read_stateful", None)
    with pytest.raises(BadValue, match="Cannot exit after layer 2: the model has 2 layers"):
        Runtime.load(gguf, Choice(draft="early_exit:layer=2"), library, Silent())


def test_a_decoding_is_given_what_it_needs_and_says_so(library: Library, gguf: str) -> None:
    found = Runtime.load(gguf, Choice(decoding="contrastive:k=3"), library, Silent())
    assert str(found.resolution.target.spec) == "openvino:hidden=True"
    assert isinstance(found.target.session, HiddenStates)
    assert not found.lossless
    answer, steps = found.answer(PROMPT, sampling=Sampling(), max_tokens=6)
    assert [len(last.tokens) for last in steps] == [1] * 6
    assert answer.off_reason == "contrastive search writes a text of its own"
    assert (answer.stats.passes, answer.stats.drafted, answer.finish_reason) == (6, 0, "length")
    asked_off = Runtime.load(gguf, Choice(decoding="contrastive", draft="off"), library, Silent())
    off, steps = asked_off.answer(PROMPT, sampling=Sampling(), max_tokens=1)
    assert len(list(steps)) == 1
    assert off.off_reason == "it was switched off"


def test_candidates_that_cannot_be_taken_back_are_refused(
    library: Library, gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadSpec, "fault", lambda *_: "a rewind leaves a trace")
    with pytest.raises(UnsupportedModel, match="cannot rewind candidates .*: a rewind leaves a trace"):
        Runtime.load(gguf, Choice(decoding="contrastive"), library, Silent())
