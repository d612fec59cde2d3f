"""Builds of a draft from a tiny model: complete, killed and resumed, and refused."""

from __future__ import annotations

import json
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from localspec import devices
from localspec.build import BuildPlan, CalibrationPrompt, build, card, checks, pipeline
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, BrokenModel, TooLittleMemory, UnknownName, VocabularyMismatch
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime

PROMPTS = [CalibrationPrompt("words", text) for text in ("abc", "hello", "12 34", "def f")]
STEPS = ("prune:layers=4", "trim_vocab:tokens=90")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Library()


@pytest.fixture(autouse=True)
def gaining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register every draft: the times of a tiny model are noise."""
    monkeypatch.setattr(pipeline, "no_gain", lambda card: None)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of five layers, the middle one idle."""
    model = tiny.make("llama", "Q8_0", layers=5, interleaved=True, seed=3)
    for part in ("attn_output", "ffn_down"):
        name = f"blk.2.{part}.weight"
        model.put(name, "Q8_0", np.zeros_like(model.stored[name]))
    return tiny.write_gguf(model, tmp_path_factory.mktemp("tiny") / "tiny.gguf")


class Recorded(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[None]:
        self.lines.append(title)
        return nullcontext()

    def say(self, line: str) -> None:
        self.lines.append(line)


def plan(gguf: Path, name: str = "cut", steps: tuple[str, ...] = STEPS) -> BuildPlan:
    return BuildPlan(name, str(gguf), str(gguf), steps)


def test_a_draft_is_built_found_and_guesses(library: Library, gguf: Path) -> None:
    built = build(plan(gguf), PROMPTS, library, Silent())
    assert library.find("cut") == built
    assert built.manifest.target == library.resolve(str(gguf), Silent()).name
    found = card(built)
    assert (found["layers"], found["of_layers"]) == ([0, 1, 3, 4], 5)
    assert (found["tokens"], found["of_tokens"], found["precision"]) == (
        90,
        tiny.VOCAB,
        "Q8_0",
    )  # weights as they are
    assert found["agreement"] > 0.9
    assert found["perplexity_ratio"] == pytest.approx(1, abs=0.1)
    assert set(found["predicted"]) == {"draft_length", "tokens_per_step", "speedup"}
    assert not (library.home / "building" / "cut").exists()
    chosen = Runtime.load(str(gguf), Choice(engine="openvino"), library, Silent())
    assert str(chosen.draft_spec) == "hybrid:name=cut"
    drafted = Runtime.load(
        str(gguf),
        Choice(engine="openvino", draft="draft_model:name=cut", draft_length="fixed:tokens=2"),
        library,
        Silent(),
    )
    plain = Runtime.load(
        str(gguf), Choice(engine="openvino", draft="off"), library, Silent(), drafted.engines
    )
    texts = []
    for runtime in (plain, drafted):
        answer, steps = runtime.answer([3, 1, 4], sampling=Sampling(), max_tokens=24)
        assert sum(len(last.tokens) for last in steps) == len(answer.token_ids)
        texts.append(answer)
    assert texts[0].token_ids == texts[1].token_ids
    assert texts[1].stats.accepted > 7


def test_a_draft_that_gains_nothing_is_no_draft_of_its_target(
    library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told before the build is complete, and can be named."""
    monkeypatch.setattr(pipeline, "no_gain", lambda card: "it is slow")
    heard = Recorded()
    built = build(plan(gguf), PROMPTS, library, heard)
    target = library.resolve(str(gguf), Silent())
    assert built.manifest.target == ""
    assert card(built)["target"] == target.name
    assert library.drafts_for(target) == []
    (told,) = (line for line in heard.lines if "gains nothing" in line)
    assert told.startswith(
        "`cut` gains nothing: it is slow. `--draft auto` leaves it out, `--draft cut` uses"
    )
    announced = f"Building `cut` from `{target.name}` as a draft for `{target.name}`; it takes"
    (first,) = (number for number, line in enumerate(heard.lines) if line.startswith(announced))
    assert "1 of 2: prune:layers=4" in heard.lines[first:]
    auto = Runtime.load(str(gguf), Choice(engine="openvino"), library, Silent())
    assert str(auto.draft_spec) == "hybrid"
    named = Runtime.load(str(gguf), Choice(engine="openvino", draft="cut"), library, Silent(), auto.engines)
    assert named.draft_name == "cut"


def test_an_openvino_folder_is_built_from_where_it_lies(library: Library, gguf: Path, tmp_path: Path) -> None:
    """Also if a model of the library has the folder's name."""
    model = library.resolve(str(gguf), Silent())
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name in model.manifest.sizes:
        if name != "model.toml":
            shutil.copyfile(model.folder / name, folder / name)
    outside = library.resolve(str(folder), Silent())
    assert (library.reference(model), library.reference(outside)) == (model.name, str(folder))
    built = build(BuildPlan("cut", str(folder), str(folder), ("prune",)), PROMPTS, library, Silent())
    assert built.manifest.target == str(folder)
    assert [draft.name for draft in library.drafts_for(outside)] == ["cut"]
    assert library.drafts_for(model) == []
    runtime = Runtime.load(str(folder), Choice(engine="openvino"), library, Silent())
    assert str(runtime.draft_spec) == "hybrid:name=cut"


def test_the_same_build_has_the_same_digests(library: Library, gguf: Path) -> None:
    """Pass costs are measured once per plan, so that a repeated build makes the same choices."""
    heard = [Recorded(), Recorded()]
    one, two = (
        build(plan(gguf, name, ("prune", "trim_vocab")), PROMPTS, library, to)
        for name, to in zip(("one", "two"), heard, strict=True)
    )
    known = "Using the pass costs of an earlier build of this plan"
    assert [known in to.lines for to in heard] == [False, True]
    for name in ("openvino_model.bin", "openvino_model.xml", "tokenizer.json", "config.json"):
        assert one.manifest.digests[name] == two.manifest.digests[name], name


def test_too_little_memory_is_reported_before_the_build(
    library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny model takes little more than an engine's overhead."""
    heard = Recorded()
    with monkeypatch.context() as patch:
        patch.setattr(devices, "free_memory", lambda: devices.ENGINE_OVERHEAD)
        with pytest.raises(TooLittleMemory, match=r"needs about 0\.4 GB of memory and 0\.4 GB are free"):
            build(plan(gguf), PROMPTS, library, heard)
    (told,) = (line for line in heard.lines if line.startswith("The build needs about"))
    assert "0.4 GB of memory (0.4 GB are free)" in told
    assert not any("answers prompt" in line for line in heard.lines)
    assert library.find("cut") is None


def test_a_killed_build_resumes(library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "evaluate", killed)
        with pytest.raises(KeyboardInterrupt):
            build(plan(gguf), PROMPTS, library, Silent())
    assert library.find("cut") is None
    work = library.home / "building" / "cut"
    assert {path.name for path in work.iterdir() if path.is_dir()} == {"0-weights", "1-prune", "2-trim_vocab"}
    (work / ".3-more.partial").mkdir()
    heard = Recorded()
    assert build(plan(gguf), PROMPTS, library, heard).name == "cut"
    assert "Resuming the build of `cut`" in heard.lines
    assert not any("answers prompt" in line or "Choosing" in line for line in heard.lines)


def test_another_plan_of_the_same_name_starts_over(
    library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "evaluate", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        build(plan(gguf), PROMPTS, library, Silent())
    with pytest.raises(KeyboardInterrupt):
        build(plan(gguf, steps=("prune:layers=5",)), PROMPTS, library, Silent())
    found = json.loads((library.home / "building" / "cut" / "1-prune" / "done.json").read_text("utf-8"))
    assert found["layers"] == [0, 1, 2, 3, 4]


def test_a_broken_model_is_not_added(library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_DRAFT_RATIO", 1.5)
    with pytest.raises(BrokenModel, match="The build broke the model"):
        build(plan(gguf, steps=("prune:layers=2",)), PROMPTS, library, Silent())
    assert library.find("cut") is None


def test_a_taken_name_is_rejected(library: Library, gguf: Path) -> None:
    name = library.resolve(str(gguf), Silent()).name
    with pytest.raises(BadValue, match=f"A model called `{name}` already exists"):
        build(plan(gguf, name), PROMPTS, library, Silent())


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "", ".hidden", "a..b", "smollm2-135m"])
def test_an_invalid_name_is_rejected(library: Library, gguf: Path, name: str) -> None:
    library.home.mkdir()
    (library.home / "mine").write_text("precious")
    with pytest.raises(BadValue):
        build(plan(gguf, name), PROMPTS, library, Silent())
    assert [path.name for path in library.home.iterdir()] == ["mine"]


@pytest.mark.parametrize("step", ["shrink", "prune:layer=3"])
def test_a_wrong_step_is_rejected_first(library: Library, gguf: Path, step: str) -> None:
    with pytest.raises(UnknownName):
        build(plan(gguf, steps=(step,)), PROMPTS, library, Silent())


def test_another_vocabulary_is_rejected(library: Library, gguf: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "add_vocabulary", tiny.add_letters_backwards)
        foreign = tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "foreign.gguf")
    with pytest.raises(VocabularyMismatch, match="have different vocabularies"):
        build(BuildPlan("cut", str(gguf), str(foreign), STEPS), PROMPTS, library, Silent())


@pytest.mark.engines
@pytest.mark.parametrize(
    ("engine", "export", "file"),
    [
        ("llamacpp", "export:to=gguf,bits=8", "model.gguf"),
        ("llamacpp", "export:to=gguf", "model.gguf"),
        ("torch", "export:to=torch", "model.safetensors"),
    ],
)
def test_a_draft_for_another_engine(
    library: Library, gguf: Path, engine: str, export: str, file: str
) -> None:
    made = BuildPlan("cut", str(gguf), str(gguf), ("prune:layers=4", export), engine=engine)
    built = build(made, PROMPTS, library, Silent())
    assert file in built.manifest.sizes
    assert built.files_in("openvino") is None
    found = card(built)
    assert found["layers"] == [0, 1, 3, 4]
    assert found["agreement"] > 0.9  # the layer that is gone does nothing
    drafted = Runtime.load(
        str(gguf),
        Choice(engine=engine, draft="draft_model:name=cut", draft_length="fixed:tokens=2"),
        library,
        Silent(),
    )
    plain = Runtime.load(str(gguf), Choice(engine=engine, draft="off"), library, Silent(), drafted.engines)
    told = []
    for runtime in (plain, drafted):
        answer, steps = runtime.answer([3, 1, 4], sampling=Sampling(), max_tokens=16)
        assert sum(len(last.tokens) for last in steps) == len(answer.token_ids)
        told.append(answer)
    assert told[0].token_ids == told[1].token_ids
    assert told[1].stats.accepted > 4
