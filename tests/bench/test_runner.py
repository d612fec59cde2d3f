"""The benchmark: turns, parity, baselines that die, an interrupt; its report, page and comparison."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import tiny

import models
from localspec import devices
from localspec.bench import baselines, comparison, page, report, runner, setup, suites
from localspec.bench.backends import (
    Backend,
    BaselineBackend,
    LocalspecBackend,
    MeasuredAnswer,
)
from localspec.bench.suites import Prompt
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, ChildFailed, PromptError, TooLittleMemory, UnknownName
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime

PROMPTS = [
    Prompt("test", "edit", "copy", ("Repeat: one two three one two three one two three one two three",)),
    Prompt("test", "talk", "chat", ("Say hello.", "Say it again.")),
]
FACTS = {
    "model": {"name": "m", "precision": "Q4_1"},
    "engine": {"spec": "openvino", "device": "CPU"},
    "options": {"tokens": 12, "repeat": 2, "prompts": 2},
    "pass_milliseconds": {"64": {"1": 10.0, "2": 11.0, "4": 12.0}},
}


class Fake(Backend):
    """Answers like another backend, at its own speed."""

    def __init__(
        self, name: str, plain: LocalspecBackend, *, rate: float = 1.0, wrong: bool = False, dies: int = 0
    ) -> None:
        self.name, self.settings = name, {}
        self._plain, self._rate, self._wrong, self._dies = plain, rate, wrong, dies
        self.asked: list[list[int]] = []

    def answer(self, prompt: Sequence[int], tokens: int, *, fresh: bool) -> MeasuredAnswer:
        self.asked.append(list(prompt))
        if self._dies and len(self.asked) >= self._dies:
            raise ChildFailed(f"`{self.name}` died with -6: out of memory")
        found = self._plain.answer(prompt, tokens, fresh=True)
        found.decode_seconds /= self._rate
        if self._wrong and len(found.token_ids) > 3:
            found.token_ids[3] = 1000 + found.token_ids[3] % 1000
        return found


@pytest.fixture(scope="module")
def own(plain: Runtime) -> LocalspecBackend:
    return LocalspecBackend("plain", plain)


def run(
    own: LocalspecBackend, *others: Backend, prompts: Sequence[Prompt] = PROMPTS, repeat: int = 2
) -> runner.BenchRun:
    runtime = own.runtime
    return runner.run([own, *others], prompts, runtime.model, runtime.engine, tokens=12, repeat=repeat)


@pytest.fixture(scope="module")
def measured(own: LocalspecBackend, home: Path) -> tuple[runner.BenchRun, list[Backend]]:
    """Plain, and a real draft on the same engine."""
    runtime = own.runtime
    guessing = Runtime.load(
        runtime.model.name,
        Choice(draft="ngram", draft_length="fixed:tokens=4"),
        Library(home),
        Silent(),
        runtime.engines,
    )
    assert guessing.engine is runtime.engine
    backends: list[Backend] = [own, LocalspecBackend("ngram", guessing)]
    return run(own, *backends[1:]), backends


def test_every_backend_answers_every_turn(
    measured: tuple[runner.BenchRun, list[Backend]],
) -> None:
    found, _ = measured
    assert found.finished
    seen = [(one.backend, one.prompt, one.turn, one.repeat) for one in found.runs]
    turns = [("edit", 0), ("talk", 0), ("talk", 1)]
    assert sorted(seen) == sorted(
        (name, *turn, count) for name in ("plain", "ngram") for turn in turns for count in (0, 1)
    )
    for one in found.runs:
        answer = one.answer
        assert answer.decode_seconds > 0
        assert answer.prefill_seconds > 0
        assert answer.decode_tokens == len(answer.token_ids) <= 12
        assert sum(answer.draft_lengths) == answer.drafted == sum(answer.drafted_at)
        assert answer.target_seconds <= answer.decode_seconds
    assert sum(one.answer.accepted for one in found.runs if one.backend == "ngram") > 0
    assert found.parity["ngram"].passed
    assert found.parity["ngram"].answers >= 2


def test_sampled_texts_compare_too(measured: tuple[runner.BenchRun, list[Backend]]) -> None:
    """The noise of a seed is that of plain decoding, so that a draft changes nothing."""
    greedy, backends = measured
    warm = Sampling(temperature=0.9)
    plain, guessing = (LocalspecBackend(one.name, one.runtime, warm) for one in backends)  # type: ignore[attr-defined]
    found = run(plain, guessing, repeat=1)
    assert found.parity["ngram"].passed
    assert found.parity["ngram"].ties == 0
    sampled, expected = (
        [one.answer.token_ids for one in some.runs if one.backend == "plain" and not one.repeat]
        for some in (found, greedy)
    )
    assert sampled != expected


def test_a_different_text_has_no_speedup(own: LocalspecBackend) -> None:
    quick, wrong = Fake("quick", own, rate=2.0), Fake("wrong", own, rate=9.0, wrong=True)
    found = run(own, quick, wrong)
    order = [one.backend for one in found.runs if one.prompt == "edit"]
    assert order == ["plain", "quick", "wrong", "wrong", "quick", "plain"]
    rows = {row["backend"]: row for row in report.summary(found)}
    assert 1.0 < rows["quick"]["speedup"]["value"] < 4.0
    assert rows["quick"]["same_text"]
    assert rows["wrong"]["speedup"] is None
    assert not rows["wrong"]["same_text"]
    assert found.parity["wrong"].failures[0]["at"] == 3
    assert "different text" in page.page(report.report(found, [own, quick, wrong], FACTS))


def test_a_baseline_that_dies_is_left_out(own: LocalspecBackend) -> None:
    found = run(own, Fake("weak", own, dies=3), Fake("strong", own))
    assert found.finished
    assert found.failed == {"weak": "`weak` died with -6: out of memory"}
    assert {one.backend for one in found.runs} >= {"plain", "strong"}
    assert len([one for one in found.runs if one.backend == "strong"]) == 6


def test_an_interrupt_keeps_what_was_measured(own: LocalspecBackend) -> None:
    class Impatient(Fake):
        def answer(self, prompt: Sequence[int], tokens: int, *, fresh: bool) -> MeasuredAnswer:
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().answer(prompt, tokens, fresh=fresh)

    found = run(own, Impatient("impatient", own))
    assert not found.finished
    assert {one.prompt for one in found.runs} == {"edit"}
    values = report.report(found, [own], FACTS)
    assert values["finished"] is False
    assert "Interrupted" in page.page(values)


def test_a_prompt_that_is_too_long_is_skipped(own: LocalspecBackend) -> None:
    class Small(Fake):
        def answer(self, prompt: Sequence[int], tokens: int, *, fresh: bool) -> MeasuredAnswer:
            if len(prompt) > 40:
                raise PromptError("too long")
            return super().answer(prompt, tokens, fresh=fresh)

    found = run(own, Small("small", own), repeat=1)
    assert found.skipped
    assert {one.prompt for one in found.runs if one.backend == "small"} <= {"edit", "talk"}


def test_a_report_has_the_documented_keys(measured: tuple[runner.BenchRun, list[Backend]]) -> None:
    values = json.loads(json.dumps(report.report(*measured, FACTS)))
    assert values["schema"] == report.SCHEMA
    plain, ngram = values["summary"]
    assert plain["speedup"] is None
    assert ngram["speedup"]["low"] <= ngram["speedup"]["value"] <= ngram["speedup"]["high"]
    assert ngram["tokens_per_pass"] > 1
    assert sum(ngram["share"].values()) == pytest.approx(1)
    assert [one["class"] for one in ngram["classes"]] == ["copy", "chat"]
    assert all(0 <= share <= 1 for share in ngram["acceptance"])
    documented = (Path(__file__).parents[2] / "docs" / "bench.md").read_text("utf-8")
    for key in (*values, *values["runs"][0], *ngram):
        assert f"`{key}`" in documented, key


class Tags(HTMLParser):
    """Records the tags of a page, and the URLs that it would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "rect", "line", "polyline", "circle"):
            self.open.append(tag)
        self.loads += [str(value) for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def test_a_page_is_self_contained(measured: tuple[runner.BenchRun, list[Backend]]) -> None:
    text = page.page(report.report(*measured, FACTS))
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.loads == []
    assert tags.seen.count("svg") >= 4
    assert "http" not in re.sub(r"<code>.*?</code>", "", text, flags=re.S)
    assert 'name="viewport"' in text
    assert "nan" not in text.lower().replace("ngram", "")


def test_a_comparison_shows_changes(measured: tuple[runner.BenchRun, list[Backend]], tmp_path: Path) -> None:
    values = report.report(*measured, FACTS)
    for row in values["summary"]:
        if row["speedup"]:  # a busy machine's own interval may reach any number
            row["speedup"] = {"value": 1.5, "low": 1.2, "high": 2.0, "prompts": 2}
    file = tmp_path / "old.json"
    file.write_text(json.dumps(values))
    before = comparison.read_report(file)
    assert "(within the intervals)" in comparison.format_comparison(before, values)
    faster = json.loads(json.dumps(values))
    for row in faster["summary"]:
        if row["speedup"]:
            row["speedup"] = {"value": 9.0, "low": 8.0, "high": 10.0, "prompts": 2}
    assert "(changed)" in comparison.format_comparison(before, faster)
    other = json.loads(json.dumps(values))
    other["machine"]["model"] = "another processor"
    assert "NOT COMPARABLE" in comparison.format_comparison(before, other)


def test_a_wrong_report_is_refused(tmp_path: Path) -> None:
    for text, said in (("{", "is not a report"), ("{}", "is not a report"), ('{"schema": 99}', "schema 99")):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(BadValue, match=said):
            comparison.read_report(tmp_path / "x.json")


def test_a_real_baseline_fails_with_a_reason() -> None:
    with pytest.raises(ChildFailed, match="llamacpp") as caught:
        BaselineBackend("llamacpp", {"model": {}, "stop_tokens": [], "threads": 1, "device": "CPU"})
    assert "does not have" in caught.value.message or "not installed" in caught.value.message


def test_an_unknown_baseline_is_refused() -> None:
    with pytest.raises(BadValue, match="Unknown baseline `ollama`"):
        baselines.rows("ollama")


def test_each_draft_is_measured_with_each_draft_length() -> None:
    one = setup.variants(Choice(threads=2), ["ngram", "suffix"], ["adaptive"])
    assert one == {name: Choice(draft=name, threads=2) for name in ("ngram", "suffix")}
    several = setup.variants(Choice(), ["ngram"], ["adaptive", "fixed:tokens=4"])
    assert several["ngram fixed:tokens=4"] == Choice(draft="ngram", draft_length="fixed:tokens=4")
    assert list(several) == ["ngram adaptive", "ngram fixed:tokens=4"]
    for drafts, lengths in ((["ngram", "ngram"], ["adaptive"]), (["ngram"], ["adaptive", "adaptive"])):
        with pytest.raises(BadValue, match="twice"):
            setup.variants(Choice(), drafts, lengths)
    with pytest.raises(UnknownName, match="fxed"):
        setup.variants(Choice(), ["ngram"], ["fxed"])


@pytest.mark.engines
@pytest.mark.parametrize("name", ["llamacpp", "llamacpp-lookup", "transformers", "transformers-lookup"])
def test_a_real_baseline_answers(own: LocalspecBackend, name: str) -> None:
    runtime = own.runtime
    baseline = BaselineBackend(name, setup.settings(runtime, None, Choice(threads=2)))
    try:
        prompt = runner.encoded(runtime.model, ["Say hello."], [], None)
        found = baseline.answer(prompt, 8, fresh=True)
        assert 1 <= len(found.token_ids) <= 8
        assert runtime.tokenizer.decode(found.token_ids).startswith("Hello")
        assert found.prefill_seconds > 0
        assert baseline.answer(prompt, 8, fresh=True).token_ids == found.token_ids
        assert (baseline.peak_memory() or 0) > 1e8
    finally:
        baseline.close()


@pytest.mark.engines
def test_rows_of_the_same_weights_share_a_process_until_the_last_is_closed(own: LocalspecBackend) -> None:
    given = setup.settings(own.runtime, own.runtime.model, Choice(threads=2))
    one = BaselineBackend("transformers", given)
    two = BaselineBackend("transformers-assisted", given, one.process)
    try:
        prompt = runner.encoded(own.runtime.model, ["Say hello."], [], None)
        answers = [baseline.answer(prompt, 6, fresh=True).token_ids for baseline in (one, two)]
        assert answers[0] == answers[1]
        one.close()
        assert two.answer(prompt, 6, fresh=True).token_ids == answers[0]
        assert one.process._process.poll() is None
    finally:
        two.close()
    assert one.process._process.poll() is not None


def test_weights_are_counted_before_they_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.make("llama", "Q8_0")
    file = tiny.write_gguf(model, tmp_path / "a.gguf")
    assert baselines.count_weights(file) == sum(values.size for values in model.values.values())
    monkeypatch.setattr(devices, "free_memory", lambda: 1000)
    with pytest.raises(TooLittleMemory, match="transformers in float32"):
        baselines._check_memory([file])


def test_quick_is_a_shipped_suite() -> None:
    assert suites.QUICK in suites.names()


Values = dict[str, Any]


def test_an_earlier_repetition_does_not_help(home: Path) -> None:
    loaded = Runtime.load(models.SMALL, Choice(draft="suffix"), Library(home), Silent())
    copying = LocalspecBackend("suffix", loaded)
    prompt = runner.encoded(loaded.model, ["Name three rivers."], [], None)
    found = [copying.answer(prompt, 24, fresh=True) for _ in range(3)]
    assert len({tuple(one.token_ids) for one in found}) == 1
    assert all(one.accepted < 12 for one in found)  # nearly all, with the first answer at hand
