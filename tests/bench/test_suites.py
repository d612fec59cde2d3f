"""Suites: shipped ones, Spec-Bench's questions, files of the user, and errors in a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.bench import suites
from localspec.errors import BadValue

OWN = ["adversarial", "chat", "code-edit", "code-write", "math", "prose", "quick", "summary", "tools"]
CLASSES = ["code-write", "code-edit", "tools", "summary", "math", "prose"]


def test_every_shipped_suite_has_distinct_prompts() -> None:
    assert suites.names() == sorted([*OWN, "baselines", "drafters"])
    every = [prompt for name in OWN for prompt in suites.load(name)]
    assert len({prompt.turns for prompt in every if prompt.suite != "quick"}) == len(every) - 12
    for name in suites.names():
        found = suites.load(name)
        assert len({prompt.name for prompt in found}) == len(found)
    assert len(suites.load("quick")) == 12
    assert len({prompt.kind for prompt in suites.load("quick")}) == 6
    assert all(len(prompt.turns) == 3 for prompt in suites.load("chat"))


@pytest.mark.parametrize(("name", "count"), [("drafters", 4), ("baselines", 2)])
def test_a_mixed_suite_is_the_first_prompts_of_each_class(name: str, count: int) -> None:
    found = suites.load(name)
    assert [prompt.kind for prompt in found] == [kind for kind in CLASSES for _ in range(count)]
    assert {prompt.suite for prompt in found} == {name}
    edits = [prompt.turns for prompt in found if prompt.kind == "code-edit"]
    assert edits == [one.turns for one in suites.load("code-edit")[:count]]


def test_a_file_may_have_prompts_and_messages(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Two?"},
    ]
    file.write_text(
        json.dumps({"prompt": "Hello"}) + "\n\n" + json.dumps({"messages": messages, "class": "x"})
    )
    one, two = suites.load(str(file))
    assert (one.suite, one.name, one.kind, one.turns, one.system) == ("mine", "1", "mine", ("Hello",), None)
    assert (two.name, two.kind, two.turns, two.system) == ("3", "x", ("One?", "Two?"), "Be short.")


def test_spec_bench_has_its_six_classes(tmp_path: Path) -> None:
    kinds = ["writing", "coding", "translation", "summarization", "qa", "math_reasoning", "rag"]
    file = tmp_path / "question.jsonl"
    file.write_text(
        "".join(
            json.dumps({"question_id": at, "category": kind, "turns": ["a", "b"][: 1 + (at < 2)]}) + "\n"
            for at, kind in enumerate(kinds)
        )
    )
    found = suites.load(f"spec-bench={file}")
    assert [prompt.kind for prompt in found][:3] == ["multi-turn conversation"] * 2 + ["translation"]
    assert len({prompt.kind for prompt in found}) == 6
    assert found[0].turns == ("a", "b")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "Line 2"),
        ("[]", "Line 2"),
        ('{"text": "x"}', "prompt"),
        ('{"prompt": " "}', "empty"),
        ('{"prompt": 3}', "Line 2"),
        ('{"messages": [{"role": "user"}]}', "content"),
        ('{"messages": []}', "Line 2"),
        ('{"suite": "nobody", "first": 1}', "nobody"),
        ('{"suite": "prose", "first": 0}', "first"),
        ('{"suite": "prose"}', "first"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(BadValue, match=said) as caught:
        suites.load(str(file))
    assert "Line 2" in caught.value.message
    assert caught.value.hint


def test_an_unknown_suite_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    for text, said in (
        ("quik", "`quick`"),
        (str(tmp_path / "empty.jsonl"), "lines such as"),
        ("spec-bench", "spec-bench=FILE"),
        (f"spec-bench={tmp_path / 'none'}", "Check the path"),
        (str(tmp_path), ""),
    ):
        with pytest.raises(BadValue) as caught:
            suites.load(text)
        assert said in (caught.value.hint or "")
