"""How parts are put together: the engine for a model, the draft, memory, and what is known from before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import tiny
from said import Said

from localspec import devices, plugins
from localspec.core.sampler import Sampling
from localspec.devices import accelerators
from localspec.draft_length.adaptive.policy import Adaptive
from localspec.engines.toy import Toy
from localspec.errors import (
    BadValue,
    ContextFull,
    EmptyPrompt,
    TooLittleMemory,
    UnsupportedModel,
    VocabularyMismatch,
)
from localspec.library import Library, Silent, StoredModel
from localspec.runtime import loading
from localspec.runtime.choice import Choice, engine_spec
from localspec.runtime.drafts import find_draft
from localspec.runtime.generation import Runtime
from localspec.runtime.loading import LoadSpec
from localspec.runtime.resolution import find_engine
from localspec.state import probes


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Library()


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "small.gguf")


@pytest.fixture
def windowed(tmp_path: Path) -> Path:
    return tiny.write_gguf(
        tiny.make("llama", "Q8_0"), tmp_path / "windowed.gguf", attention__sliding_window=16
    )


def without(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    library = replace(devices.LIBRARIES[engine], module="no_such_module")
    monkeypatch.setitem(devices.LIBRARIES, engine, library)


def test_auto_is_openvino_on_this_machine(library: Library, gguf: Path) -> None:
    spec, reason, model = find_engine(str(gguf), Choice(), library, Silent())
    assert str(spec) == "openvino"
    assert reason
    assert model.files_in("openvino")


def test_auto_takes_llamacpp_for_what_openvino_cannot_read(
    library: Library, windowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(devices.LIBRARIES, "llamacpp", devices.EngineLibrary("json", "pytest", "gguf"))
    spec, reason, model = find_engine(str(windowed), Choice(threads=2), library, Silent())
    assert str(spec) == "llamacpp:threads=2"
    assert reason == "OpenVINO cannot read the model"
    assert model.files_in("gguf") == windowed


def test_auto_takes_a_card_that_the_model_fits_in(
    library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = devices.Device("torch", "cuda:0", "NVIDIA H100", "cuda", 80_000_000_000, 70_000_000_000)
    monkeypatch.setattr(accelerators, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(accelerators, "cuda_devices", lambda: [card])
    spec, reason, model = find_engine(str(gguf), Choice(), library, Silent())
    assert (str(spec), reason) == ("torch:device=cuda:0", "NVIDIA H100 is available")
    assert model.files_in("openvino") is None
    monkeypatch.setitem(devices.LIBRARIES, "torch", devices.EngineLibrary("json", "pytest", "export"))
    monkeypatch.setattr(accelerators, "cuda_devices", lambda: [replace(card, free=1_000_000)])
    spec, reason, model = find_engine(str(gguf), Choice(), library, Silent())
    assert (str(spec), reason) == ("openvino", "an NVIDIA card is present, but the model does not fit")
    assert model.files_in("openvino")


@pytest.mark.parametrize(("room", "form"), [(1.0, None), (0.4, "int4"), (0.7, "int8"), (0.1, None)])
def test_fewer_bits_are_named_where_they_fit_a_card_and_never_chosen(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: float, form: str | None
) -> None:
    path = tiny.write_gguf(tiny.make("qwen2", "Q4_0"), tmp_path / "a.gguf")
    needed = plugins.part("engines", "torch").made_by.weighs(path, device="cuda")
    free = devices.ENGINE_OVERHEAD + int(room * needed) + 1
    card = devices.Device("torch", "cuda:0", "NVIDIA H100", "cuda", 80_000_000_000, free)
    monkeypatch.setattr(accelerators, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(accelerators, "cuda_devices", lambda: [card])
    monkeypatch.setitem(devices.LIBRARIES, "torch", devices.EngineLibrary("json", "pytest", "export"))
    said = Said()
    spec, _, model = find_engine(str(path), Choice(), library, said)
    assert spec.name == ("torch" if room == 1.0 else "openvino")
    assert [line for line in said.lines if "in fewer bits" in line] == [
        f"`{model.name}` fits cuda:0 in fewer bits: `--engine torch:weights={form},device=cuda:0`"
        for _ in range(form is not None)
    ]


def test_without_llamacpp_such_a_model_is_refused(
    library: Library, windowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "llamacpp")
    with pytest.raises(UnsupportedModel, match="sliding window"):
        find_engine(str(windowed), Choice(), library, Silent())


def test_an_engine_that_is_asked_for_gets_its_form(library: Library, gguf: Path) -> None:
    spec, reason, model = find_engine(str(gguf), Choice(engine="llamacpp"), library, Silent())
    assert (str(spec), reason) == ("llamacpp", "it was chosen")
    assert model.files_in("openvino") is None


def test_an_option_that_an_engine_does_not_have_is_refused(library: Library) -> None:
    with pytest.raises(BadValue, match="no option called `threads`"):
        engine_spec("toy", threads=2)


def test_too_little_memory_is_said_before_loading(
    library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "free_memory", lambda: 100_000_000)
    with pytest.raises(
        TooLittleMemory, match=r"needs about 0\.4 GB of memory and 0\.1 GB are free"
    ) as caught:
        Runtime.load(str(gguf), Choice(), library, Silent())
    assert caught.value.needed > caught.value.free == 100_000_000


def test_prompts_that_the_model_cannot_read(library: Library, gguf: Path) -> None:
    runtime = Runtime.load(str(gguf), Choice(draft="off"), library, Silent())
    vocab, context = runtime.engine.vocab, runtime.engine.context
    for prompt, error in (
        ([], EmptyPrompt),
        ([1, vocab], UnsupportedModel),
        ([1] * context, ContextFull),
    ):
        with pytest.raises(error):
            runtime.answer(prompt, sampling=Sampling())
    answer, steps = runtime.answer([1, vocab - 1], sampling=Sampling(), max_tokens=1)
    assert len(list(steps)) == len(answer.token_ids) == 1


def test_a_card_has_memory_of_its_own(library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = library.resolve(str(gguf), Silent())
    for text, own in (("openvino", True), ("openvino:device=GPU", False), ("torch:device=cuda:0", False)):
        assert LoadSpec(engine_spec(text), model).in_main_memory is own
    monkeypatch.setattr(devices, "has_nvidia_driver", lambda: True)
    assert not LoadSpec(engine_spec("torch"), model).in_main_memory
    monkeypatch.setattr(devices, "has_nvidia_driver", lambda: False)
    assert LoadSpec(engine_spec("torch"), model).in_main_memory


def pair(library: Library, gguf: Path) -> StoredModel:
    """Return a model that is its own draft by the catalogue."""
    model = library.resolve(str(gguf), Silent())
    return replace(model, draft=model.name)


def test_auto_takes_the_pair_unless_the_doctor_saw_it_change_the_text(library: Library, gguf: Path) -> None:
    model, spec = pair(library, gguf), engine_spec("openvino")
    found = find_draft(Choice(), model, spec, library, Silent())
    assert str(found.spec) == f"hybrid:name={model.name}"
    assert found.load is not None
    assert (found.load.model.name, found.load.spec, found.foreign) == (
        model.name,
        spec,
        False,
    )
    probes.add(LoadSpec(spec, model).key, drafts={model.name: {"same": False}})
    said = Said()
    found = find_draft(Choice(), model, spec, library, said)
    assert (found.spec, found.loads) == (plugins.parse("drafters", "hybrid"), [])
    assert "localspec doctor" in said.lines[0]
    other = engine_spec("openvino:group=0")  # the verdict is about another arithmetic
    assert find_draft(Choice(), model, other, library, Silent()).load is not None


def test_auto_takes_the_latest_draft_that_was_built_for_the_target(
    library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, spec = pair(library, gguf), engine_spec("openvino")
    built = [
        replace(
            model, name=name, manifest=msgspec.structs.replace(model.manifest, target=target, created=when)
        )
        for name, target, when in (("old", model.name, "1"), ("new", model.name, "2"), ("other", "x", "3"))
    ]
    monkeypatch.setattr(Library, "all", lambda library: built)
    assert str(find_draft(Choice(), model, spec, library, Silent()).spec) == "hybrid:name=new"


def test_what_would_help_is_said_once(library: Library, gguf: Path) -> None:
    model, said = replace(library.resolve(str(gguf), Silent()), draft="qwen2.5-coder-0.5b"), Said()
    for _ in range(2):
        found = find_draft(Choice(), model, engine_spec("openvino"), library, said)
        assert (str(found.spec), found.load) == ("hybrid", None)
    assert len(said.lines) == 1
    assert "--draft qwen2.5-coder-0.5b" in said.lines[0]


def test_a_draft_may_ask_for_a_device_and_an_engine(library: Library, gguf: Path) -> None:
    model, spec = pair(library, gguf), engine_spec("openvino:kv=f32")
    for draft, expected in (
        (f"draft_model:name={gguf},device=GPU", "openvino:kv=f32,device=GPU"),
        (f"draft_model:name={gguf},runs=llamacpp,threads=1", "llamacpp:threads=1"),
    ):
        found = find_draft(Choice(draft=draft), model, spec, library, Silent()).load
        assert found is not None
        assert str(found.spec) == expected


def test_one_engine_serves_a_model_that_drafts_for_itself(library: Library, gguf: Path) -> None:
    found = Runtime.load(str(gguf), Choice(draft=f"draft_model:name={gguf}"), library, Silent())
    assert found.draft_engine is found.engine
    other = Runtime.load(str(gguf), Choice(draft=f"draft_model:name={gguf},threads=1"), library, Silent())
    assert other.draft_engine is not other.engine


def test_a_model_that_cannot_rewind_is_not_guessed_for(
    library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadSpec, "load", lambda spec: Toy(vocab_size=96, block_size=0))
    found = Runtime.load(str(gguf), Choice(draft="ngram"), library, Silent())
    assert found.draft_spec.name == "ngram"
    answer, steps = found.answer([3, 1, 3, 1, 3, 1], sampling=Sampling(), max_tokens=8)
    assert sum(last.drafted for last in steps) == 0
    assert answer.off_reason == "its state cannot be rewound"


def test_a_rewind_is_proved_once(library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proofs: list[int] = []

    def prove(session: object, vocab: int) -> None:
        proofs.append(vocab)

    monkeypatch.setattr(loading, "rewind_fault", prove)
    for _ in range(2):
        Runtime.load(str(gguf), Choice(draft="ngram"), library, Silent())
    Runtime.load(str(gguf), Choice(draft="off", engine="openvino:kv=f32"), library, Silent())
    assert proofs == [96]
    Runtime.load(str(gguf), Choice(draft="ngram", engine="openvino:kv=f32"), library, Silent())
    assert proofs == [96, 96]


def test_verdicts_survive_damage(library: Library) -> None:
    probes.add("a", rewind=None)
    probes.add("a", more=1)
    assert probes.read("a") == {"rewind": None, "more": 1}
    (library.home / "probes" / "a.json").write_text("{")
    assert probes.read("a") == {}


def test_what_a_lookahead_learned_is_there_the_next_time(
    library: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, int]] = []
    learned = {"version": 1, "rounds": 7}
    monkeypatch.setattr(Adaptive, "state", lambda self: learned)
    monkeypatch.setattr(Adaptive, "restore", lambda self, values: seen.append(dict(values)))
    first = Runtime.load(str(gguf), Choice(draft="ngram"), library, Silent())
    for _ in first.answer([3, 1, 3, 1], sampling=Sampling(), max_tokens=4)[1]:
        pass
    Runtime.load(str(gguf), Choice(draft="ngram"), library, Silent())
    Runtime.load(str(gguf), Choice(draft="recycle"), library, Silent())
    assert seen == [{}, learned, {}]


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that has the same letters as other tokens."""
    monkeypatch.setattr(tiny, "add_vocabulary", tiny.add_letters_backwards)
    path = tiny.write_gguf(tiny.make("llama", "Q8_0", seed=1), tmp_path / "foreign.gguf")
    monkeypatch.undo()
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return path


def test_a_draft_with_another_vocabulary_is_translated_and_it_is_said(
    library: Library, gguf: Path, foreign: Path
) -> None:
    said = Said()
    found = Runtime.load(str(gguf), Choice(draft=str(foreign)), library, said)
    assert str(found.draft_spec) == f"hybrid:name={found.draft_name}"
    about = [line for line in said.lines if "translated" in line]
    assert len(about) == 1
    assert f"`{found.draft_name}` has another vocabulary than `{found.model.name}`" in about[0]
    prompt = [found.tokenizer.token_to_id(letter) for letter in "def"]
    texts = []
    for draft in (found, Runtime.load(str(gguf), Choice(draft="off"), library, Silent(), found.engines)):
        answer, steps = draft.answer(prompt, sampling=Sampling(), max_tokens=24)
        assert sum(len(last.tokens) for last in steps) == 24 or answer.finish_reason == "stop"
        texts.append(answer.token_ids)
    assert texts[0] == texts[1]


def test_a_drafter_that_needs_the_targets_vocabulary_says_who_does_not(
    library: Library, gguf: Path, foreign: Path
) -> None:
    with pytest.raises(VocabularyMismatch, match="Token 0 is `!`") as caught:
        Runtime.load(str(gguf), Choice(draft=f"draft_model:name={foreign}"), library, Silent())
    assert "`--draft universal:name=foreign" in str(caught.value.hint)


def test_translating_the_same_vocabulary_works_and_is_said_to_be_idle(library: Library, gguf: Path) -> None:
    said = Said()
    found = Runtime.load(str(gguf), Choice(draft=f"universal:name={gguf}"), library, said)
    assert any("`draft_model` drafts at a lower cost" in line for line in said.lines)
    answer, steps = found.answer([3, 1, 3, 1], sampling=Sampling(), max_tokens=8)
    assert len([token for last in steps for token in last.tokens]) == len(answer.token_ids) > 0


def test_off_guesses_not_even_what_a_grammar_forces(library: Library, gguf: Path) -> None:
    answers = {}
    for draft in ("off", "none"):
        found = Runtime.load(str(gguf), Choice(draft=draft), library, Silent())
        answer, steps = found.answer(
            [3, 1, 3], sampling=Sampling(), max_tokens=8, grammar='start: "abcabc" | "abcdef"'
        )
        answers[draft] = (answer, [last.drafted for last in steps])
    assert {answer.text for answer, _ in answers.values()} <= {"abcabc", "abcdef"}
    assert answers["off"][0].token_ids == answers["none"][0].token_ids
    assert set(answers["off"][1]) == {0}
    assert answers["off"][0].off_reason == "it was switched off"
    assert sum(answers["none"][1]) > 0
