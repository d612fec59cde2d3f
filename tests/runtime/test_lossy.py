"""Middle tiers and the lossy verifier: what is loaded, refused, warned of and counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from said import Said

from localspec.bench import report
from localspec.bench.runner import BenchRun, Parity
from localspec.bench.suites import Prompt
from localspec.bench.tuning.candidates import draft_candidates, engine_candidates
from localspec.bench.tuning.mask_finder import MaskFinder, choice_for
from localspec.bench.wording import parities
from localspec.cli.answers import answer_values, format_stats_line
from localspec.cli.drafts.find_mask import format_mask
from localspec.cli.machine.bench import bench
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, VocabularyMismatch
from localspec.library import Library, Silent
from localspec.runtime.answer import Answer
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.runtime.resolution import resolve
from localspec.state import skip_masks

LAYERS = 6
PROMPT = [3, 1, 4, 1, 5, 3, 1, 4, 1, 5, 3, 1]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Library()


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny.write_gguf(tiny.make("llama", "Q8_0", layers=LAYERS), tmp_path / "deep.gguf")


def answered(runtime: Runtime, tokens: int = 40) -> Answer:
    answer, steps = runtime.answer(PROMPT, sampling=Sampling(), max_tokens=tokens)
    for _ in steps:
        pass
    return answer


def test_via_makes_its_drafter_and_warns_each_time(library: Library, gguf: Path) -> None:
    for _ in range(2):
        said = Said()
        found = resolve(str(gguf), Choice(engine="openvino", verifier="via:accept=0.7"), library, said)
        assert str(found.draft.spec) == "cascade:middle=5,accept=0.7"
        assert str(found.target.spec) == "openvino:exit=5"
        assert [line for line in said.lines if line.startswith("`--verifier via` changes the text")]
    said = Said()
    resolve(str(gguf), Choice(draft="cascade:middle=exit"), library, said)
    assert not [line for line in said.lines if "changes the text" in line]


def test_its_statistics_tell_the_tiers(library: Library, gguf: Path) -> None:
    choice = Choice(engine="openvino", draft_length="fixed:tokens=5", verifier="via:escalate=0")
    runtime = Runtime.load(str(gguf), choice, library, Silent())
    assert not runtime.lossless
    for _ in range(2):  # each answer counts for itself
        answer = answered(runtime)
        assert sum(answer.tiers.tokens.values()) == len(answer.token_ids) == 40
        unseen = sum(count for tier, count in answer.tiers.tokens.items() if tier != "full")
        assert answer.tiers.unseen == unseen > 0
        assert unseen == answer.stats.sources["middle"].accepted
        runtime.forget()
    values = answer_values(answer, runtime)["speculation"]
    assert values["lossless"] is False
    assert sum(values["tiers"]["shares"].values()) == pytest.approx(1, abs=1e-3)
    assert values["tiers"]["overshoot"] == pytest.approx(answer.tiers.overshoot / unseen, abs=1e-4)
    line = format_stats_line(answer, runtime)
    assert "not the model's own text: " in line
    assert " % full" in line
    assert "overshoot " in line


def test_a_cascade_before_the_target_is_lossless(library: Library, gguf: Path) -> None:
    plain = answered(Runtime.load(str(gguf), Choice(engine="openvino", draft="off"), library, Silent()))
    for middle in ("exit", str(gguf)):
        choice = Choice(
            engine="openvino", draft=f"cascade:middle={middle},escalate=0", draft_length="fixed:tokens=5"
        )
        runtime = Runtime.load(str(gguf), choice, library, Silent())
        answer = answered(runtime)
        assert runtime.lossless
        assert answer.token_ids == plain.token_ids
        assert answer.stats.sources["middle"].drafted > 0
        assert not answer.tiers.tokens
        assert "tiers" not in answer_values(answer, runtime)["speculation"]


def test_draft_and_middle_tier_are_two_models(library: Library, gguf: Path, tmp_path: Path) -> None:
    small = tiny.write_gguf(tiny.make("llama", "Q8_0", seed=1), tmp_path / "small.gguf")
    choice = Choice(engine="openvino", draft=f"cascade:middle={small},name={gguf},threads=1")
    runtime = Runtime.load(str(gguf), choice, library, Silent())
    assert [spec.model.folder.name for spec, _ in runtime.engines] == [
        runtime.model.folder.name,
        runtime.model.folder.name,
        library.resolve(str(small), Silent()).folder.name,
    ]
    assert len({id(engine) for _, engine in runtime.engines}) == 3
    again = Runtime(runtime.resolution, runtime.engines)
    assert [engine for _, engine in again.engines] == [engine for _, engine in runtime.engines]


def test_a_middle_tier_with_another_vocabulary_is_refused(
    library: Library, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tiny, "add_vocabulary", tiny.add_letters_backwards)
        other = tiny.write_gguf(tiny.make("llama", "Q8_0", seed=1), tmp_path / "other.gguf")
    with pytest.raises(VocabularyMismatch):
        resolve(str(gguf), Choice(engine="openvino", draft=f"cascade:middle={other}"), library, Silent())


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(verifier="via", draft="ngram"), "`--verifier via` needs the drafter `cascade`"),
        (Choice(verifier="via", draft="off"), "`--verifier via` does nothing without a draft"),
        (
            Choice(verifier="via:accept=0.8", draft="cascade:middle=exit,accept=0.9"),
            "`cascade:middle=exit,accept=0.9` and `via:accept=0.8` differ in `accept`",
        ),
        (Choice(verifier="via", engine="llamacpp"), "`cascade` needs an engine with `exit`"),
        (Choice(verifier="via", decoding="contrastive"), "`--verifier` does nothing beside"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_loaded(choice: Choice, said: str) -> None:
    with pytest.raises(BadValue) as caught:
        choice.check()
    assert caught.value.message.startswith(said)
    assert caught.value.hint


def test_a_model_named_beside_via_drafts_below_the_middle_tier() -> None:
    found = Choice(verifier="via", draft="smollm2-135m").with_drafter()
    assert found.draft == "cascade:middle=exit,name=smollm2-135m"
    assert Choice(draft="smollm2-135m").with_drafter() == Choice(draft="smollm2-135m")


def test_a_mask_is_kept_with_the_model(library: Library, gguf: Path) -> None:
    choice = Choice(engine="torch", draft="cascade:middle=mask")
    with pytest.raises(BadValue, match=r"No mask of `deep.*` is known") as caught:
        resolve(str(gguf), choice, library, Silent())
    assert caught.value.hint
    assert "localspec find-mask" in caught.value.hint
    model = library.resolve(str(gguf), Silent(), ("gguf",))
    skip_masks.keep(model, "a2+m3", cost=0.5)
    found = resolve(str(gguf), choice, library, Silent())
    assert (str(found.draft.spec), str(found.target.spec)) == ("cascade:middle=a2+m3", "torch:skip=True")
    skip_masks.keep(model, "nonsense")
    assert skip_masks.read(model) is None


def test_a_search_keeps_its_mask_and_tells_what_it_gains(library: Library, gguf: Path) -> None:
    prompts = [Prompt("test", "one", "copy", ("abab",)), Prompt("test", "two", "copy", ("cdcd",))]
    finder = MaskFinder(str(gguf), choice_for("hybrid", "cpu", 1), prompts, library, Silent())
    with pytest.raises(BadValue, match="leaves nothing out"):
        finder.find(0.05, 4)
    found = finder.find(0.5, 4)
    assert (found.tried, found.draft) == (4, "hybrid")
    assert found.cost <= found.median_cost
    assert 0 <= found.agreement <= 1
    assert 0 < found.tokens <= 48
    assert found.pass_ratio > 0
    finder.keep(found)
    assert skip_masks.read(finder.model) == found.mask
    shown = format_mask("deep", found.as_values())
    assert f"kept: {found.mask}" in shown
    assert "middle tier" in shown


def test_tune_never_changes_the_text(library: Library, gguf: Path) -> None:
    runtime = Runtime.load(str(gguf), Choice(engine="openvino"), library, Silent())
    candidates = [*engine_candidates(runtime), *draft_candidates(runtime, library)]
    assert len(candidates) > 4
    assert {candidate.choice.verifier for candidate in candidates} == {"exact"}


def test_a_benchmark_refuses_a_draft_without_tiers_before_anything_is_loaded() -> None:
    with pytest.raises(BadValue, match="`--verifier via` needs the drafter `cascade`"):
        bench(model="no-such-model", draft=["ngram"], verifier="via")


def test_a_benchmark_calls_it_lossy() -> None:
    measured = BenchRun(parity={"plain": Parity(), "via": Parity(answers=4, lossy=True)})
    values = report.report(measured, [], {})
    assert values["parity"]["via"]["lossy"]
    assert parities(values) == {"via": "lossy: 4 answers compared, none differs"}
