"""The torch engine: the real SmolLM2, tiny models of many families, and a stand-in for Gaudi."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import parity
import pytest
import tiny
import torch
from passes import read

from localspec import plugins
from localspec.core.contracts import DraftModel
from localspec.core.cursor import Cursor
from localspec.decoder import capacity
from localspec.drafters.draft_model import ModelDraft
from localspec.engines.torch.engine import Torch
from localspec.errors import BrokenModel, ContextFull, TooLittleMemory, UnknownDevice, UnsupportedModel
from localspec.formats.huggingface import torch_devices

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

Ask = Callable[..., Any]
TEXT = [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 100)]
SHAPE = {"vocab_size": tiny.VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0}
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ALTERNATING = {"num_hidden_layers": 4, "sliding_window": 8}
KEPT: dict[str, dict[str, Any]] = {  # all they remember is in keys and values
    "llama": {"num_hidden_layers": 2},
    "qwen2": {"num_hidden_layers": 2},
    "qwen3": {"num_hidden_layers": 2, "head_dim": 32},
    "gpt2": {"num_hidden_layers": 2},
    "mistral": {"num_hidden_layers": 2, "sliding_window": 8},
    "gemma2": ALTERNATING,
    "gemma3_text": ALTERNATING | {"layer_types": ["sliding_attention", "full_attention"] * 2},
}
RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {"num_hidden_layers": 2, "state_size": 8},
    "lfm2": {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2},
    "qwen3_next": {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
    | {**DELTA, **EXPERTS, "linear_value_head_dim": 16, "shared_expert_intermediate_size": 32},
}


@pytest.fixture(scope="module")
def smol(smollm2_gguf: Path) -> Torch:
    return Torch(smollm2_gguf, device="cpu", precision="f32")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a tiny random model of a family."""

    @cache
    def make(name: str) -> Path:
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **SHAPE | (KEPT | RECURRENT)[name])
        model = AutoModelForCausalLM.from_config(config)
        for values in model.parameters():
            values.data *= 3 if values.ndim > 1 else 1  # else one token looks like another
        folder = tmp_path_factory.mktemp(name)
        model.save_pretrained(folder)
        return folder

    return make


@pytest.mark.parametrize("kept", [31, 64, 127])
def test_a_rewind_leaves_no_trace(smol: Torch, text: list[int], kept: int) -> None:
    used, fresh = smol.session(), smol.session()
    read(used, text[:kept], kept)
    fresh.forward(text[:kept], 0)
    rejected = used.forward(text[130:139], 9).copy()
    assert used.rewind(kept) == kept
    after, expected = read(used, text[kept : kept + 9], 4, 1), read(fresh, text[kept : kept + 9], 4, 1)
    assert np.abs(after - expected).max() == 0.0
    assert np.abs(rejected - expected).max() > 1.0  # the guesses were others
    assert used.rewind(999) == kept + 9
    assert used.rewind(0) == 0


def test_buffers_that_grow_and_chunks_forget_nothing(
    smol: Torch, text: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = (text * 2)[:300]
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 8)
    small = Cursor(smol.session(), chunk=50).read(tokens, 30).copy()
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 512)
    assert np.array_equal(small, Cursor(smol.session(), chunk=50).read(tokens, 30))
    assert np.abs(small - smol.session().forward(tokens, 30)).max() < parity.UNROUNDED


def test_only_the_last_rows_are_made(smol: Torch, text: list[int]) -> None:
    every = smol.session().forward(text[:40], 40).copy()
    session = smol.session()
    last = session.forward(text[:40], 3)
    assert (last.shape, last.dtype) == ((3, smol.vocab), np.float32)
    assert np.abs(last - every[-3:]).max() < 1e-3
    assert session.forward(text[40:45], 0).shape == session.forward([], 0).shape == (0, smol.vocab)


@pytest.mark.parametrize("draft", ["ngram", "itself"])
def test_a_draft_does_not_change_the_text(smol: Torch, ask: Ask, prompt: list[int], draft: str) -> None:
    plain = ask(Cursor(smol.session()), prompt=prompt, room=32)
    target = Cursor(smol.session())
    source = (
        ModelDraft(target, DraftModel(smol, smol.vocab), name="itself")
        if draft == "itself"
        else plugins.parse("drafters", draft).make(target)
    )
    drafted = ask(target, source, prompt=prompt, room=32)
    assert sum(last.accepted for last in drafted.steps) > 8
    parity.check(plain.tokens, drafted.tokens, engine=smol, prompt=prompt, tolerance=parity.UNROUNDED)


def test_greedy_text_is_that_of_transformers(smol: Torch, ask: Ask, text: list[int]) -> None:
    asked, ids = text[:40], torch.tensor([text[:40]])
    theirs = smol.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, pad_token_id=0
    )
    assert ask(Cursor(smol.session()), prompt=asked, room=40).tokens == theirs[0, 40:].tolist()


def test_engines_on_one_file_share_their_weights(smol: Torch, smollm2_gguf: Path) -> None:
    other, half = Torch(smollm2_gguf, device="cpu", threads=1), Torch(smollm2_gguf, precision="bf16")
    places = [next(engine.model.parameters()).data_ptr() for engine in (smol, other, half)]
    assert places[0] == places[1] != places[2]
    assert (smol.device, half.dtype) == ("cpu", torch.bfloat16)
    assert Torch.weighs(smollm2_gguf) == 2 * Torch.weighs(smollm2_gguf, precision="bf16")
    assert Torch.weighs(smollm2_gguf) == 4 * sum(found.numel() for found in smol.model.parameters())
    rows = smol.session().forward(TEXT[:20], 5), half.session().forward(TEXT[:20], 5)
    assert rows[1].dtype == np.float32
    assert 0 < np.abs(rows[0] - rows[1]).max() < 1.5


def test_sessions_in_two_threads_do_not_disturb_each_other(smol: Torch, text: list[int]) -> None:
    texts = (text[:30], text[90:120])
    alone = [read(smol.session(), tokens, 20, 1, 3) for tokens in texts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda tokens: read(smol.session(), tokens, 20, 1, 3), texts))
    for left, right in zip(alone, together, strict=True):
        assert np.abs(left - right).max() < 1e-3


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_both_forms_give_the_logits_of_the_formulas(name: str, tied: bool, tmp_path: Path) -> None:
    stored = tiny.make(name, "Q8_0", tied=tied, interleaved=name == "llama")
    plain = tiny.make(name, tied=tied)
    made = (stored, tiny.write_gguf(stored, tmp_path / "a.gguf")), (plain, tiny.write_folder(plain, tmp_path))
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((tmp_path / "config.json").read_text()) | {"vocab_size": tiny.VOCAB})
    )
    for model, path in made:
        rows = read(Torch(path, device="cpu").session(), TEXT[:40], 25, 1, 4)
        assert np.abs(rows - tiny.logits(model, TEXT[:40])).max() < 1e-4


def test_the_frequencies_are_those_of_the_file(tmp_path: Path) -> None:
    stretch = np.linspace(1.0, 8.0, tiny.HEAD_WIDTH // 2)
    model = tiny.make("llama", interleaved=True, stretch=stretch)
    rows = Torch(tiny.write_gguf(model, tmp_path / "a.gguf"), device="cpu").session().forward(TEXT, 100)
    assert np.abs(rows - tiny.logits(model, TEXT)).max() < 1e-4


@pytest.mark.parametrize("name", [*KEPT, *RECURRENT])
def test_any_rewind_says_what_it_kept(family: Callable[[str], Path], name: str) -> None:
    engine, numbers = Torch(family(name), device="cpu"), np.random.default_rng(1)
    assert engine.recurrent == (name in RECURRENT)
    expected, session, held, kept = engine.session().forward(TEXT, 100).copy(), engine.session(), 0, []
    for _ in range(30):
        size = min(int(numbers.choice([1, 1, 2, 5, 20])), len(TEXT) - held)
        rows = session.forward(TEXT[held : held + size], size)
        assert np.abs(rows - expected[held : held + size]).max() < 1e-4
        held += size
        session.forward([5, 6, 7][: 256 - held], 1)
        back = int(numbers.integers(max(0, held - 8), held))
        held = session.rewind(back)
        assert held <= back
        kept.append(back - held)
    assert any(kept) == (name in RECURRENT)
    assert not all(kept)


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_an_interrupted_pass_leaves_no_trace(family: Callable[[str], Path], name: str) -> None:
    engine = Torch(family(name), device="cpu")
    session, layer = engine.session(), engine.model.base_model.layers[1]
    for start in range(0, 40, 10):
        session.forward(TEXT[start : start + 10], 0)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    hook = layer.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.forward([1, 2, 3], 3)
    hook.remove()
    kept = session.rewind(40)
    assert kept in (0, 40)
    assert np.abs(session.forward(TEXT[kept:44], 4) - engine.session().forward(TEXT[:44], 4)).max() < 1e-4


def test_checkpoints_are_few_and_the_nearest_ones_dense(family: Callable[[str], Path]) -> None:
    session = Torch(family("mamba"), device="cpu").session()
    session.forward(TEXT[:20], 0)
    for token in TEXT[20:]:
        session.forward([token], 1)
    assert [session.rewind(length) for length in range(99, 91, -1)] == [*range(99, 91, -1)]
    assert 20 <= session.rewind(70) <= 70
    assert session.rewind(10) == 0


def test_a_full_context_harms_nothing(family: Callable[[str], Path]) -> None:
    for name in ("llama", "lfm2"):
        session = Torch(family(name), device="cpu").session()
        session.forward(TEXT[:10], 0)
        with pytest.raises(ContextFull, match=r"257 tokens .* holds 256"):
            session.forward([1] * 247, 1)
        assert session.forward([1] * 246, 1).shape == (1, tiny.VOCAB)


class Habana:
    """The part of Gaudi's library that the engine uses, on the CPU; counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, self.shapes = 0, set[tuple[int, ...]]()
        names = ("", ".torch", ".torch.core", ".torch.hpu", ".torch.utils", ".torch.utils.internal")
        made = {name: ModuleType(f"habana_frameworks{name}") for name in names}
        for name, module in made.items():
            monkeypatch.setitem(sys.modules, module.__name__, module)
            if name:
                parent, _, own = name.rpartition(".")
                setattr(made[parent], own, module)
        made[".torch.core"].mark_step = self.step  # type: ignore[attr-defined]
        made[".torch.utils.internal"].is_lazy = lambda: True  # type: ignore[attr-defined]
        made[".torch.hpu"].wrap_in_hpu_graph = self.wrap  # type: ignore[attr-defined]
        place = torch.device("cpu")
        monkeypatch.setattr(torch_devices, "_devices", lambda: {"hpu:0": place, "cpu": place})

    def step(self) -> None:
        self.steps += 1

    def wrap(self, module: Any) -> Any:
        def replay(*given: Any) -> Any:
            self.shapes.add(tuple(each.numel() for each in given))
            return module(*given)

        return replay


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma3_text"])
def test_gaudi_gets_few_shapes_and_gives_the_same_rows(
    family: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    habana = Habana(monkeypatch)
    engine = Torch(family(name), device="hpu")
    assert (engine.device, type(engine.session()).__name__) == ("hpu:0", "StaticSession")
    session, expected = engine.session(), Torch(family(name), device="cpu").session().forward(TEXT, 100)
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 64)  # so that the buffers grow
    for start in range(0, 100, 10):
        for rejected in (3, 7):
            session.forward(TEXT[:rejected], rejected)
            assert session.rewind(start) == start
        for at, size in ((0, 1), (1, 6), (7, 3)):
            rows = session.forward(TEXT[start + at : start + at + size], size - (size > 3))
            assert np.abs(rows - expected[start + at + (size > 3) : start + at + size]).max() < 1e-4
    assert habana.steps == 50
    assert habana.shapes == {(1, 1, 1), (4, 4, 4), (8, 8, 8)}
    assert session.forward([1] * 156, 0).shape == (0, tiny.VOCAB)
    with pytest.raises(ContextFull):
        session.forward([1], 1)


def test_gaudi_refuses_what_it_cannot_rewind(
    family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    Habana(monkeypatch)
    with pytest.raises(UnsupportedModel, match="hpu:0"):
        Torch(family("mamba"), device="hpu")


def test_an_unknown_device_names_those_there_are(smollm2_gguf: Path) -> None:
    with pytest.raises(UnknownDevice, match="Unknown device `tpu`") as caught:
        Torch(smollm2_gguf, device="tpu")
    assert "`cpu`" in (caught.value.hint or "")


def test_damaged_and_unknown_models_are_refused(
    family: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((family("llama") / "config.json").read_text())
    weights = (family("llama") / "model.safetensors").read_bytes()

    def refused(error: type[Exception], match: str, **changed: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(error, match=match) as caught:
            Torch(tmp_path, device="cpu")
        assert caught.value.hint  # type: ignore[attr-defined]

    (tmp_path / "model.safetensors").write_bytes(weights)
    refused(BrokenModel, "has no tensor `model.layers.2", num_hidden_layers=3)
    refused(UnsupportedModel, "`nobody` model", model_type="nobody")
    refused(UnsupportedModel, "`own` model", model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    refused(BrokenModel, "cannot be loaded", hidden_size=128)
    (tmp_path / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    refused(BrokenModel, "truncated")
    model = tiny.make("llama", interleaved=True)
    del model.stored["blk.1.attn_k.weight"]
    with pytest.raises(BrokenModel, match=r"no tensor `blk\.1\.attn_k\.weight`"):
        Torch(tiny.write_gguf(model, tmp_path / "a.gguf"), device="cpu")
    assert capfd.readouterr() == ("", "")


def test_a_full_device_is_told_in_numbers(smol: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has ...")

    session = smol.session()
    monkeypatch.setattr(smol, "run", full)
    with pytest.raises(TooLittleMemory, match=r"a text of 3 tokens` needs about 2\.7 GB"):
        session.forward([1, 2, 3], 1)
