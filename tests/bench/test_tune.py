"""Tuning: a winner is confirmed, kept for this machine, and used by chat; otherwise the default stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import models
from localspec.bench import suites
from localspec.bench.tuning import candidates
from localspec.bench.tuning.candidates import Candidate, Pair
from localspec.bench.tuning.tuner import Tuner, Tuning
from localspec.drafting.time_limit import TimeLimit
from localspec.library import Library, Silent, StoredModel
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.state import tuned

PROMPTS = suites.load("quick")


@pytest.fixture
def tuner(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Tuner]]:
    """A tuner with given measurements: seconds per token of each candidate, 1 for the default."""

    def make(speeds: dict[str, float], seconds: float = 1000.0, wrong: str = "") -> Tuner:
        made = Tuner(models.SMALL, PROMPTS, Library(home), Silent(), seconds=seconds)
        numbers = np.random.default_rng(0)

        def pair(
            candidate: Candidate, prompt: object, *, swapped: bool = False
        ) -> tuple[float, float] | None:
            if wrong and wrong in candidate.name:
                candidate.rejected = "different text"
                return None
            spent = next(
                (
                    speed
                    for text, speed in speeds.items()
                    if all(part in candidate.name for part in text.split(" & "))
                ),
                1.0,
            )
            noise = float(np.exp(numbers.normal(0, 0.02)))
            return 1.0, spent * noise

        monkeypatch.setattr(made, "_pair", pair)
        return made

    model = Library(home).find(models.SMALL)
    assert model is not None
    yield make
    tuned.log(model).unlink(missing_ok=True)
    tuned.keep(model, None, None)


def model_of(home: Path) -> StoredModel:
    found = Library(home).find(models.SMALL)
    assert found is not None
    return found


def test_the_fastest_is_found_confirmed_kept_and_used(tuner: Callable[..., Tuner], home: Path) -> None:
    found = tuner({"suffix & fixed:tokens=4": 0.5, "ngram": 0.8})
    tuning = found.run()
    assert tuning.winner is not None
    assert tuning.winner.choice.draft == "suffix"
    assert tuning.winner.choice.draft_length == "fixed:tokens=4"
    assert tuning.speedup is not None
    assert tuning.speedup.low > 1.8
    found.keep(tuning)
    kept = tuned.read(model_of(home))
    assert kept is not None
    assert kept["speedup"] == tuning.speedup.value
    used = Runtime.load(models.SMALL, Choice(tuned=True), Library(home), Silent())
    assert str(used.draft_spec) == "suffix"
    assert used.resolution.tuned_speedup == tuning.speedup.value
    assert Runtime.load(models.SMALL, Choice(), Library(home), Silent()).resolution.tuned_speedup is None


def test_the_best_engine_and_draft_are_joined(tuner: Callable[..., Tuner]) -> None:
    tuning = tuner({"kv=u8 & fixed:tokens=8": 0.4, "kv=u8": 0.7, "fixed:tokens=8": 0.6}).run()
    assert tuning.winner is not None
    assert (tuning.winner.choice.engine, tuning.winner.choice.draft_length) == (
        "openvino:kv=u8",
        "fixed:tokens=8",
    )


def test_the_default_stays_where_nothing_is_faster(tuner: Callable[..., Tuner], home: Path) -> None:
    tuned.keep(model_of(home), {"draft": "off"}, 1.5)
    found = tuner({"ngram": 1.02, "off": 1.1})
    tuning = found.run()
    assert tuning.winner is None
    found.keep(tuning)
    assert tuned.read(model_of(home)) is None


def test_a_candidate_with_a_different_text_is_rejected(tuner: Callable[..., Tuner]) -> None:
    tuning = tuner({"kv=u8": 0.3}, wrong="kv=u8").run()
    assert tuning.winner is None
    assert [one.rejected for one in tuning.candidates if "kv=u8" in one.name][0] == "different text"
    assert "different text" in str(tuning.as_values())


def test_an_interrupted_search_is_continued(
    tuner: Callable[..., Tuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tuner({"ngram": 0.9})
    asked: list[str] = []
    pair = first._pair

    def stopping(candidate: Candidate, prompt: suites.Prompt, **options: bool) -> tuple[float, float] | None:
        if len(asked) == 5:
            raise KeyboardInterrupt
        asked.append(f"{candidate.name} {prompt.name}")
        return pair(candidate, prompt, **options)

    monkeypatch.setattr(first, "_pair", stopping)
    tuning = first.run()
    assert not tuning.finished
    assert tuning.winner is None
    second = tuner({"ngram": 0.9})
    again: list[str] = []
    pair = second._pair

    def noting(candidate: Candidate, prompt: suites.Prompt, **options: bool) -> tuple[float, float] | None:
        again.append(f"{candidate.name} {prompt.name}")
        return pair(candidate, prompt, **options)

    monkeypatch.setattr(second, "_pair", noting)
    monkeypatch.setattr(second, "_confirm", lambda candidate: None)
    assert second.run().finished
    assert not set(asked) & set(again)


def test_the_search_ends_at_its_deadline(tuner: Callable[..., Tuner]) -> None:
    tuning = tuner({"ngram": 0.5}, seconds=0.0).run()
    assert tuning.finished
    assert tuning.winner is None
    assert all(not one.pairs for one in tuning.candidates)


@pytest.mark.parametrize(("loading", "answers"), [(0.0, 1.0), (20.0, 4.0), (40.0, 2.0), (5.0, 30.0)])
def test_a_search_keeps_to_its_time(
    tuner: Callable[..., Tuner], monkeypatch: pytest.MonkeyPatch, loading: float, answers: float
) -> None:
    seconds, now, loaded = 600.0, [0.0], [Choice(draft="none yet")]
    made = tuner({"suffix & fixed:tokens=4": 0.5, "ngram": 0.8})
    pair = made._pair
    limit = TimeLimit(seconds, clock=lambda: now[0])
    now[0] += loading

    def taking_long(candidate: Candidate, prompt: suites.Prompt, **options: bool) -> Pair | None:
        with limit.measured("loading"):
            now[0] += loading * (candidate.choice != loaded[0])
        with limit.measured("pair"):
            now[0] += answers
        loaded[0] = candidate.choice
        monkeypatch.setattr(made, "_loaded", (candidate.choice, None))
        return pair(candidate, prompt, **options)

    monkeypatch.setattr(made, "_limit", limit)
    monkeypatch.setattr(made, "_pair", taking_long)
    tuning = made.run()
    assert tuning.finished
    assert now[0] <= seconds * 1.1
    assert (tuning.winner is None) == bool(tuning.unconfirmed)
    if answers == 30.0:  # twelve pairs of the confirmation do not fit
        assert [one.pairs != {} for one in tuning.unconfirmed]
        assert "The time was too short to confirm" in tuning.advice[-1]


def test_what_the_time_was_too_short_for_removes_no_earlier_winner(
    tuner: Callable[..., Tuner], home: Path
) -> None:
    tuned.keep(model_of(home), {"draft": "ngram"}, 1.5)
    made = tuner({})
    made.keep(Tuning([], None, None, [], finished=True, unconfirmed=[Candidate(Choice(draft="suffix"))]))
    assert tuned.read(model_of(home)) is not None
    made.keep(Tuning([], None, None, [], finished=True))
    assert tuned.read(model_of(home)) is None


def test_a_tuning_is_for_one_machine_and_one_version(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec import devices

    model = model_of(home)
    tuned.keep(model, {"draft": "off"}, 1.5)
    assert tuned.read(model)
    cpu = devices.cpu()
    monkeypatch.setattr(devices, "cpu", lambda: replace(cpu, model="another"))
    assert tuned.read(model) is None
    monkeypatch.undo()
    monkeypatch.setitem(devices.LIBRARIES, "openvino", devices.EngineLibrary("json", "pytest"))
    assert tuned.read(model) is None


def test_a_real_pair_is_measured_and_its_text_compared(home: Path) -> None:
    made = Tuner(models.SMALL, PROMPTS, Library(home), Silent(), seconds=1000.0, tokens=8)
    candidate = Candidate(Choice(draft="ngram", draft_length="fixed:tokens=2"))
    pair = made._pair(candidate, PROMPTS[0])
    assert pair is not None
    assert min(pair) > 0
    broken = Candidate(Choice(engine="openvino:device=TPU"))
    assert made._pair(broken, PROMPTS[0]) is None
    assert "TPU" in (broken.rejected or "")
    assert candidates.ENGINE_VARIANTS["openvino"]
