"""Drafting with a head: the same text, on both engines, alone and mixed with copies; and wrong heads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from random_heads import random_tensors, write_head, write_speculators

import models
from localspec.core.contracts import Read
from localspec.core.sampler import Sampling
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BadValue, BrokenModel, UnsupportedModel
from localspec.formats.heads import layout
from localspec.library import Library, Silent, StoredModel
from localspec.library.importing import heads
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.runtime.load import Loaded, load
from localspec.runtime.resolution import resolve
from localspec.runtime.shared_passes import shared_engines

pytestmark = pytest.mark.engines

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
FIXED = "fixed:tokens=3"


def answer(target: StoredModel, library: Library, sampling: Sampling | None = None, **choice: Any) -> Any:
    chosen = Choice(**({"engine": "openvino", "draft_length": FIXED} | choice))
    runtime = Runtime.load(str(library.reference(target)), chosen, library, Silent())
    found, steps = runtime.answer(PROMPT, sampling=sampling or Sampling(), max_tokens=40, seed=5)
    for _ in steps:
        pass
    return runtime, found


@pytest.fixture
def head(library: Library, target: StoredModel, tmp_path: Path) -> StoredModel:
    return heads.add(library, write_head(tmp_path / "published", random_tensors()), "own", target, Silent())


def test_a_head_drafts_the_same_text(library: Library, target: StoredModel, head: StoredModel) -> None:
    assert head.kind == "head"
    assert head.manifest.target == target.name
    _, plain = answer(target, library, draft="off")
    for draft in ("head:name=own", "own", "auto", "hybrid:name=own"):
        runtime, drafted = answer(target, library, draft=draft)
        assert drafted.token_ids == plain.token_ids, draft
        assert str(runtime.resolution.target.spec) == "openvino:taps=1-2-4"
        assert drafted.stats.drafted > 10


def test_a_head_drafts_on_torch(library: Library, target: StoredModel, head: StoredModel) -> None:
    engine = "torch:device=cpu,precision=f32"
    _, plain = answer(target, library, draft="off", engine=engine)
    for draft in ("head:name=own", "own"):
        runtime, drafted = answer(target, library, draft=draft, engine=engine)
        assert drafted.token_ids == plain.token_ids
        assert drafted.stats.drafted > 10
        assert runtime.draft_engine.model is runtime.engine.model  # its embedding takes no memory of its own


def test_both_engines_guess_alike(library: Library, target: StoredModel, head: StoredModel) -> None:
    exact = ("openvino:precision=f32,group=0,kv=f32", "torch:device=cpu,precision=f32")
    found = []
    for engine in exact:
        _, drafted = answer(target, library, draft="head:name=own", engine=engine)
        found.append((drafted.stats.drafted, drafted.stats.accepted))
    assert abs(found[0][1] - found[1][1]) <= 2  # eight bits against sixteen
    assert abs(found[0][0] - found[1][0]) <= 6


@pytest.mark.parametrize("verifier", ["exact", "rejection"])
def test_sampled_text_is_the_targets_own(
    library: Library, target: StoredModel, head: StoredModel, verifier: str
) -> None:
    sampling = Sampling(temperature=1.0)
    _, plain = answer(target, library, sampling, draft="off")
    _, drafted = answer(target, library, sampling, draft="head:name=own", verifier=verifier)
    if verifier == "exact":
        assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted >= 3  # of an answer that may be short


def test_a_second_turn_reads_what_is_new(library: Library, target: StoredModel, head: StoredModel) -> None:
    runtime, first = answer(target, library, draft="head:name=own")
    plain, _ = answer(target, library, draft="off")
    for text in ([*PROMPT, *first.token_ids[:8], 7, 8], PROMPT[:4], [9, 9, 9, 1]):
        found = []
        for each in (runtime, plain):
            again, steps = each.answer(text, sampling=Sampling(), max_tokens=12)
            for _ in steps:
                pass
            found.append(again.token_ids)
        assert found[0] == found[1]


def test_texts_share_passes(library: Library, target: StoredModel, head: StoredModel) -> None:
    """Two answers at once: the states of each text are its own."""
    engine = OpenVino(target.folder, taps="1-2-4")
    shared, alone = engine.shared_passes(2), engine.session()
    assert shared is not None
    texts = [shared.session(), shared.session()]
    shared.forward([Read(texts[0], [3, 1, 4], 1), Read(texts[1], [9], 1)])
    shared.forward([Read(texts[0], [1], 1), Read(texts[1], [2, 6, 5, 3], 1)])
    for session, text in zip(texts, ([3, 1, 4, 1], [9, 2, 6, 5, 3]), strict=True):
        alone.rewind(0)
        alone.forward(text, 1)
        assert np.allclose(session.states(), alone.states(), atol=0.05 * np.std(alone.states()))
    chosen = Choice(engine="openvino", draft="head:name=own", draft_length=FIXED)
    resolution = resolve(target.name, chosen, library, Silent())
    loaded = load(resolution)
    engines = shared_engines(loaded.engines, resolution.target, 2)
    assert len(engines) == 2
    _, plain = answer(target, library, draft="off")

    def ask(own: Any) -> list[int]:
        runtime = Runtime(resolution, loaded=Loaded(own, loaded.tokenizer, None), texts=2)
        found, steps = runtime.answer(PROMPT, sampling=Sampling(), max_tokens=40, seed=5)
        for _ in steps:
            pass
        own[resolution.target].leave()
        return list(found.token_ids)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, engines)) == [plain.token_ids] * 2


def test_penalties_and_bias_reach_the_guesses(
    library: Library, target: StoredModel, head: StoredModel
) -> None:
    sampling = Sampling(repetition_penalty=1.3, logit_bias={5: -100.0})
    _, plain = answer(target, library, sampling, draft="off")
    _, drafted = answer(target, library, sampling, draft="head:name=own")
    assert drafted.token_ids == plain.token_ids
    assert 5 not in plain.token_ids


def test_a_folder_is_imported_once(library: Library, target: StoredModel, tmp_path: Path) -> None:
    folder = write_speculators(tmp_path / "published", random_tensors())
    for _ in range(2):
        _, drafted = answer(target, library, draft=f"head:name={folder}")
        assert drafted.stats.drafted > 10
    assert [model.kind for model in library.all()].count("head") == 1


def test_a_head_of_another_model_is_refused(library: Library, target: StoredModel, tmp_path: Path) -> None:
    few = tiny.write_gguf(tiny.make("llama", "F32", layers=3, interleaved=True), tmp_path / "few.gguf")
    other = library.resolve(str(few), Silent())
    heads.add(library, write_head(tmp_path / "published", random_tensors()), "own", target, Silent())
    with pytest.raises(UnsupportedModel, match=r"own.*trained for.*layer 4.*3 layers"):
        answer(other, library, draft="own")
    wide = write_head(tmp_path / "wide", random_tensors() | {"fc.weight": np.zeros((256, 96), np.float16)})
    config = (wide / "config.json").read_text("utf-8")
    (wide / "config.json").write_text(config.replace("{", '{"target_hidden_size": 32, ', 1), "utf-8")
    with pytest.raises(UnsupportedModel, match="32 columns"):
        heads.add(library, wide, "wide", target, Silent())
    assert library.find("wide") is None


def test_another_vocabulary_is_refused(library: Library, target: StoredModel, head: StoredModel) -> None:
    digests = target.manifest.digests | {"tokenizer.json": "0" * 64}
    manifest = type(target.manifest)(**{**_fields(target), "digests": digests})
    with pytest.raises(UnsupportedModel, match="another vocabulary"):
        heads.check_fits(head, replace(target, manifest=manifest))


def _fields(model: StoredModel) -> dict[str, Any]:
    return {name: getattr(model.manifest, name) for name in model.manifest.__struct_fields__}


def test_a_cut_head_is_broken(library: Library, target: StoredModel, tmp_path: Path) -> None:
    folder = write_head(tmp_path / "published", random_tensors())
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BrokenModel, match="truncated"):
        answer(target, library, draft=f"head:name={folder}")
    assert [model.kind for model in library.all()] == ["text"]


def test_drafters_take_their_own_kind(library: Library, target: StoredModel, head: StoredModel) -> None:
    with pytest.raises(
        BadValue, match="`draft_model` runs a model of text, and `own` is one of head"
    ) as caught:
        answer(target, library, draft="draft_model:name=own")
    assert caught.value.hint == "Type `--draft head:name=own`"
    with pytest.raises(BadValue, match="`head` runs a model of head"):
        answer(target, library, draft=f"head:name={target.name}")
    with pytest.raises(UnsupportedModel, match="`own` is a head"):
        library.resolve("own", Silent())
    with pytest.raises(BadValue, match="`taps`"):
        answer(target, library, draft="own", engine="npu")


def test_a_real_target_writes_the_same(library: Library, tmp_path: Path) -> None:
    """SmolLM2 with a random head: whatever is guessed, the logits and the text are those without it."""
    target = library.resolve(str(models.smollm2_gguf()), Silent())
    layers, width = target.shape()
    head = layout.read(write_head(tmp_path / "published", random_tensors()))
    numbers = np.random.default_rng(1)
    shape = replace(
        head.shape, width=width, tapped_width=width, vocab=49152, taps=layout.default_taps(layers)
    )
    tensors = {
        name: numbers.normal(1 if len(size) == 1 else 0, 0.04, size).astype(np.float32)
        for name, size in shape.tensors().items()
    }
    (tmp_path / "wide").mkdir()
    layout.write(replace(head, shape=shape, tensors=tensors), tmp_path / "wide")
    heads.add(library, tmp_path / "wide", "own", target, Silent())
    plain, tapped = (OpenVino(target.folder, taps=taps).session() for taps in ("", "2-15-27"))
    text = target.encode("def add(a, b):\n    return a +")
    for part in (text, [260], [260, 1009, 30], [28]):
        assert np.array_equal(plain.forward(part, len(part)), tapped.forward(part, len(part)))
    _, alone = answer(target, library, draft="off")
    for draft in ("head:name=own", "own"):
        _, drafted = answer(target, library, draft=draft)
        assert drafted.token_ids == alone.token_ids
        assert drafted.stats.drafted > 10
