"""Which engine `auto` takes where two can run a model: what decides, what is kept, and engines that fail."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import tiny
from said import Said

from localspec import devices
from localspec.core.sampler import Sampling
from localspec.library import Library, Silent, StoredModel
from localspec.runtime import engine_race
from localspec.runtime.choice import Choice, engine_spec
from localspec.runtime.engine_race import decoding_rate, format_costs, known_costs, race, tokens_per_second
from localspec.runtime.generation import Runtime
from localspec.runtime.loading import LoadSpec
from localspec.runtime.resolution import find_engine

FAST = {
    "1": 20.0,
    "4": 80.0,
    "8": 160.0,
    "prompt": 10.0,
}  # the fastest single token, and nothing gained by more
FLAT = {"1": 25.0, "4": 30.0, "8": 40.0, "prompt": 3.0}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredModel:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(engine_race, "SMALL", 0)
    monkeypatch.setattr(engine_race, "DISTURBED", 1000.0)  # tests share the cores
    gguf = tiny.write_gguf(tiny.make("llama", "Q8_0", layers=2), tmp_path / "small.gguf")
    return Library().resolve(str(gguf), Silent())


@pytest.fixture
def runners(model: StoredModel) -> dict[LoadSpec, float | None]:
    return {LoadSpec(engine_spec(name), model): 0.0 for name in ("openvino", "llamacpp")}


def test_plain_decoding_wants_the_fastest_single_token_and_drafts_the_cheapest_wide_pass() -> None:
    assert decoding_rate(FAST, None) == 50.0
    assert decoding_rate(FLAT, None) == 40.0
    assert decoding_rate(FAST, 0.5) == 50.0  # "no draft" is always among the choices
    copied = sum(0.85**at for at in range(8)) / 40e-3
    of_model = sum(0.75**at for at in range(4)) / (3 * 2.5e-3 + 30e-3)
    assert decoding_rate(FLAT, 0.0) == pytest.approx(1 / (0.5 / 40 + 0.5 / copied))
    assert decoding_rate(FLAT, 0.1) == pytest.approx(1 / (0.5 / of_model + 0.5 / copied))
    assert decoding_rate(FLAT, 0.0) > decoding_rate(FAST, 0.0)


def test_a_prompt_counts_for_half_a_token_of_the_answer() -> None:
    assert tokens_per_second(FAST, None) == pytest.approx(1000 / (20 + 5))
    assert tokens_per_second(FLAT, None) == pytest.approx(1000 / (25 + 1.5))


@pytest.mark.engines
def test_two_engines_race_once(
    model: StoredModel, runners: dict[LoadSpec, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert known_costs(model) == {}
    said = Said()
    verdict = race(runners, said)
    assert verdict.winner in runners
    assert verdict.reason.startswith("openvino ")
    assert "; llamacpp " in verdict.reason
    assert said.lines[-1].startswith(f"Using {verdict.winner.spec.name}: {verdict.reason}; this took ")
    assert format_costs(known_costs(model)) == verdict.reason
    monkeypatch.setattr(engine_race, "JsonChild", None)  # a second race would fail
    again = Said()
    assert race(runners, again) == verdict
    assert again.lines == []


@pytest.mark.engines
def test_an_engine_that_fails_has_lost(runners: dict[LoadSpec, float | None]) -> None:
    openvino, llamacpp = runners
    openvino.path.joinpath("openvino_model.bin").write_bytes(b"damaged")
    said = Said()
    verdict = race(runners, said)
    assert verdict.winner == llamacpp
    assert len([line for line in said.lines if line.startswith("`openvino`") and "left out" in line]) == 1


def test_what_other_work_disturbed_is_not_kept(
    runners: dict[LoadSpec, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        engine_race,
        "_hold",
        lambda _: {"said": ["disturbed"], "disturbed": True, "seconds": 1, "costs": COSTS},
    )
    said = Said()
    assert race(runners, said).winner.spec.name == "openvino"
    assert said.lines[0] == "disturbed"
    assert race(runners, again := Said()).winner.spec.name == "openvino"
    assert again.lines[0] == "disturbed"
    assert race(runners, last := Said()).winner.spec.name == "openvino"
    assert last.lines == []  # a machine that is always busy does not wait at each start


COSTS = {"openvino": FLAT, "llamacpp": FAST}


def test_a_race_out_of_time_is_tried_twice(
    runners: dict[LoadSpec, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_race, "LIMIT", 0.0)
    steps: list[str] = []

    def step(
        self: Silent, title: str, total: int | None = None, unit: str = ""
    ) -> AbstractContextManager[None]:
        steps.append(title)
        return nullcontext()

    monkeypatch.setattr(Silent, "step", step)
    for _ in range(3):
        verdict = race(runners, Silent())
        assert verdict.winner.spec.name == "openvino"
        assert "ran out of time" in verdict.reason
    assert len(steps) == 2


def test_no_race_for_what_does_not_fit_twice(
    runners: dict[LoadSpec, float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "free_memory", lambda: 1000)
    assert "do not fit in memory" in race(runners, Silent()).reason


@pytest.mark.engines
def test_auto_races_what_both_can_run(model: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    raced: list[list[str]] = []

    def held(runners: dict[LoadSpec, float | None], _: object) -> engine_race.Verdict:
        raced.append([str(runner.spec) for runner in runners])
        return engine_race.Verdict(list(runners)[-1], "measured")

    monkeypatch.setattr("localspec.runtime.resolution.race", held)
    library = Library()
    spec, reason, _ = find_engine(model.name, Choice(threads=2), library, Silent())
    assert str(spec) == "llamacpp:threads=2"
    assert reason.endswith("; measured")
    only_openvino = (
        Choice(draft="early_exit:layer=1"),
        Choice(decoding="contrastive"),
        Choice(engine="openvino"),
    )
    for choice in only_openvino:
        assert find_engine(model.name, choice, library, Silent())[0].name == "openvino"
    assert raced == [["openvino:threads=2", "llamacpp:threads=2"]]


@pytest.mark.engines
def test_the_winner_answers(model: StoredModel) -> None:
    runtime = Runtime.load(model.name, Choice(), Library(), Silent())
    assert runtime.resolution.engine_reason.partition("; ")[2].startswith("openvino ")
    answer, steps = runtime.answer([1, 2, 3], sampling=Sampling(), max_tokens=4)
    list(steps)
    assert len(answer.token_ids) == 4
