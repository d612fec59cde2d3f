"""An early exit on real engines: the same rows, one set of weights, and a draft that costs no layer twice."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import tiny
from passes import read

import models
from localspec.core.contracts import EarlyExit, Engine
from localspec.core.cursor import Cursor
from localspec.core.rewind_check import rewind_fault
from localspec.core.sampler import Sampling
from localspec.drafters.early_exit import EarlyExitDraft
from localspec.engines.openvino.engine import OpenVino
from localspec.engines.torch.engine import Torch
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.ir import import_weights
from localspec.library import Silent, StoredModel

pytestmark = pytest.mark.engines

LAYER = 20  # of SmolLM2's 30
Ask = Callable[..., Any]
Make = Callable[..., Any]
both = pytest.mark.parametrize("name", ["openvino", "torch", "own"])


@pytest.fixture(scope="module")
def made(smollm2: StoredModel, smollm2_gguf: Path) -> Make:
    """Return SmolLM2 on an engine, whole or with an exit, made once."""

    @cache
    def make(name: str, layer: int = LAYER) -> Engine:
        if name != "openvino":
            decoder = "auto" if name == "torch" else name
            return Torch(smollm2_gguf, device="cpu", threads=2, exit=layer, decoder=decoder)
        return OpenVino(smollm2.folder, threads=2, exit=layer)

    return make


def opened(engine: Engine, prompt: list[int]) -> Cursor:
    """Return a cursor that has read the prompt as the runtime reads it: up to its last token."""
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    return cursor


@both
def test_the_parts_give_the_rows_of_the_whole(made: Make, text: list[int], name: str) -> None:
    split, whole = made(name).session(), made(name, 0).session()
    assert isinstance(split, EarlyExit)
    assert not isinstance(whole, EarlyExit)
    assert np.array_equal(read(split, text[:90], 40, 1, 9, 1, 30), read(whole, text[:90], 40, 1, 9, 1, 30))


@both
def test_going_on_from_the_exit_is_reading_anew(made: Make, text: list[int], name: str) -> None:
    ahead, anew = made(name).session(), made(name).session()
    for session in (ahead, anew):
        session.forward(text[:40], 0)
    expected = [anew.early(text[40 : 40 + count], 1).copy() for count in range(1, 5)]
    assert all(row.shape == (1, 49152) for row in expected)
    assert anew.rewind(40) == 40
    ahead.early([7, 8, 9], 1)  # guesses that are dropped
    for count in range(1, 5):
        assert np.array_equal(ahead.early(text[40 : 40 + count], 1), expected[count - 1])
    singles = read(anew, text[40:45], 1)
    assert np.abs(ahead.forward(text[40:45], 5) - singles).max() < parity.ROUNDED


@both
def test_its_rewind_holds(made: Make, name: str) -> None:
    engine = made(name)
    for kept in (12, 100):
        assert rewind_fault(engine.session(), engine.vocab, kept) is None


@both
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.8, top_k=40)], ids=["greedy", "sampled"]
)
def test_a_draft_of_the_first_layers_does_not_change_the_text(
    made: Make, ask: Ask, prompt: list[int], name: str, sampling: Sampling
) -> None:
    asked = {"prompt": prompt, "room": 40, "sampling": sampling, "seed": 7}
    plain = ask(opened(made(name, 0), prompt), **asked)
    target = opened(made(name), prompt)
    drafted = ask(target, EarlyExitDraft(target, layer=LAYER), **asked)
    assert sum(last.drafted for last in drafted.steps) > 20
    parity.check(
        plain.tokens,
        drafted.tokens,
        engine=made(name, 0),
        prompt=prompt,
        tolerance=parity.ROUNDED,
        sampling=sampling,
        seed=7,
    )


@both
def test_the_check_reads_no_draft_through_the_first_layers(
    made: Make, ask: Ask, prompt: list[int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = opened(made(name), prompt)
    session: Any = target.session
    passes: list[str] = []

    def counted(part: str, whole: Any, tokens: Any, *rest: Any) -> Any:
        passes.extend([part] * len(tokens))
        return whole(tokens, *rest)

    for part in ("_first", "_rest"):
        monkeypatch.setattr(session, part, partial(counted, part, getattr(session, part)))
    found = ask(target, EarlyExitDraft(target, layer=LAYER), prompt=prompt, room=24)
    read = sum(1 + last.drafted for last in found.steps)
    assert passes.count("_first") == passes.count("_rest") == read > 24


def test_torch_parts_share_the_weights_of_the_whole(made: Make) -> None:
    whole, split = made("torch", 0), made("torch")
    assert split.parts is not None
    places = {values.data_ptr() for values in whole.model.parameters()}
    for part in split.parts:
        assert {values.data_ptr() for values in part.parameters()} <= places
    assert [len(part.base_model.layers) for part in split.parts] == [LAYER, 30 - LAYER, 0]


def folder(kind: str, path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text('{"max_position_embeddings": 256}')  # says no number of layers
    import_weights(GgufFile.open(tiny.write_gguf(tiny.make("llama", kind), path / "a.gguf")), path, Silent())
    return path


def test_a_layer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    silent = folder("Q8_0", tmp_path / "silent")
    gguf = silent / "a.gguf"
    for make in (lambda: OpenVino(silent, exit=2), lambda: Torch(gguf, device="cpu", exit=2)):
        with pytest.raises(BadValue, match="Cannot exit after layer 2: the model has 2 layers") as caught:
            make()
        assert caught.value.hint == "Choose one from 1 to 1"


@pytest.mark.parametrize("family", ["mamba", "gpt2", "gemma2"])
def test_a_family_that_cannot_be_cut_is_refused(family: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 4, "pad_token_id": 0}
    shape |= {} if family == "mamba" else {"num_attention_heads": 4}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="has no early exit") as caught:
        Torch(tmp_path, device="cpu", exit=2)
    assert caught.value.hint


@pytest.mark.large
@both
def test_coder_writes_its_own_text_with_its_first_layers_as_the_draft(ask: Ask, name: str) -> None:
    model = models.large("qwen2.5-coder-0.5b")
    engine: Any = OpenVino if name == "openvino" else Torch
    path = model.path_for(name, engine.forms)
    whole, split = engine(path, threads=2), engine(path, threads=2, exit=20)
    text = "<|im_start|>user\nWrite quicksort in Python.<|im_end|>\n<|im_start|>assistant\n"
    prompt = model.tokenizer().encode(text, add_special_tokens=False).ids
    plain = ask(opened(whole, prompt), prompt=prompt, room=64)
    target = opened(split, prompt)
    drafted = ask(target, EarlyExitDraft(target, layer=20), prompt=prompt, room=64)
    assert sum(last.accepted for last in drafted.steps) > 8
    parity.check(plain.tokens, drafted.tokens, engine=whole, prompt=prompt, tolerance=parity.ROUNDED)
