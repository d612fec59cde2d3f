"""The commands of tests, the files that programs name, and the checks before a task ends."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import models
from localspec.agent import events
from localspec.agent.attempt import MAX_ATTEMPTS, MAX_SAME, MAX_SAME_AGAIN, Attempt
from localspec.agent.calls import run_call
from localspec.agent.events import (
    CheckEvent,
    FinishedEvent,
    NotYetEvent,
    PromptEvent,
    StartOverEvent,
    ToolResultEvent,
)
from localspec.agent.loop import Agent
from localspec.agent.permission import EVERYTHING, HARMLESS, Permission
from localspec.agent.tools import toolbox
from localspec.agent.tools.edits import Edits
from localspec.agent.tools.folder import Folder, is_test
from localspec.agent.tools.shell import Shell
from localspec.agent.verification.commands import (
    command_of_failing_program,
    command_of_tests,
    missing_runner,
)
from localspec.agent.verification.definitions import definitions
from localspec.agent.verification.named_files import handed_over, local_imports, named_files
from localspec.agent.verification.review import Review, last_lines
from localspec.library import Library, Silent
from localspec.output.tool_calls import Call
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.tools import ToolFailed

FUNCTIONS = "from area import area\n\n\ndef test_area():\n    assert area(3, 4) == 12\n"
SCRIPT = "from area import area\n\nassert area(3, 4) == 12\n"
CASES = (
    "import unittest\n\nfrom area import area\n\n\nclass Areas(unittest.TestCase):\n"
    "    def test_area(self):\n        self.assertEqual(area(3, 4), 12)\n"
)
WRONG = "def area(width, height):\n    return width + height\n"
RIGHT = "def area(width, height):\n    return width * height\n"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def lay_out(folder: Folder, **texts: str) -> None:
    """Write files; a name has `__` in place of `/`, and `.py` at its end unless it has another one."""
    for name, text in texts.items():
        place = folder.root / (name.replace("__", "/") + ("" if "." in name else ".py"))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("test_a.py", True),
        ("a/b_test.go", True),
        ("tests/data.json", True),
        ("src/a.test.ts", True),
        ("a.spec.js", True),
        ("testing.py", False),
        ("contest.py", False),
        ("src/latest/a.py", False),
    ],
)
def test_a_test_is_known_by_its_name(name: str, test: bool) -> None:
    assert is_test(name) == test


@pytest.mark.parametrize("text", [FUNCTIONS, SCRIPT, CASES, f"{FUNCTIONS}\n\ntest_area()\n", "def f(:\n"])
@pytest.mark.parametrize("name", ["test_area", "tests__test_area"])
def test_the_command_runs_the_tests_whatever_their_kind(folder: Folder, text: str, name: str) -> None:
    lay_out(folder, **{"area": WRONG, name: text})
    command = command_of_tests(folder, "Fix it.")
    assert command
    with pytest.raises(ToolFailed):
        Shell(folder, 60).run_shell(command)
    if "(:" not in text:
        lay_out(folder, area=RIGHT)
        Shell(folder, 60).run_shell(command)


def test_tests_that_the_task_names_come_first(folder: Folder) -> None:
    lay_out(folder, test_a=SCRIPT, test_b=SCRIPT, tests__conftest="x = 1\n", setup="x = 1\n")
    python = "python" if shutil.which("python") else "python3"
    assert command_of_tests(folder, "Fix it.") == f"{python} test_a.py && {python} test_b.py"
    assert command_of_tests(folder, "Make test_b.py pass.") == f"{python} test_b.py"
    assert command_of_tests(folder, "Make `make test` pass.") == "make test"
    assert command_of_tests(folder, "Call `area()`.") == f"{python} test_a.py && {python} test_b.py"


def test_a_folder_without_tests_has_no_command(folder: Folder) -> None:
    lay_out(folder, area=RIGHT)
    assert command_of_tests(folder, "Fix it.") is None
    (folder.root / "package.json").write_text('{"scripts": {"test": "echo no test specified && exit 1"}}')
    assert command_of_tests(folder, "Fix it.") is None


@pytest.mark.parametrize(
    ("name", "text", "command", "program"),
    [
        ("package.json", '{"scripts": {"test": "node a.js"}}', "npm test --silent", "npm"),
        ("Cargo.toml", '[package]\nname = "a"\n', "cargo test -q", "cargo"),
        ("go.mod", "module a\n", "go test ./...", "go"),
        ("Makefile", "all:\n\ntest: all\n\ttrue\n", "make test", "make"),
    ],
)
def test_the_tests_of_other_packages(
    folder: Folder, name: str, text: str, command: str, program: str
) -> None:
    (folder.root / name).write_text(text)
    assert command_of_tests(folder, "") == (command if shutil.which(program) else None)


def test_the_python_of_the_folder_is_not_run_before_it_is_allowed(folder: Folder) -> None:
    python = folder.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\ntouch ran\n")
    python.chmod(0o755)
    lay_out(folder, test_area=CASES)
    assert command_of_tests(folder, "") == ".venv/bin/python -m unittest -q test_area.py"
    (folder.root / ".venv/lib/python3.11/site-packages/pytest").mkdir(parents=True)
    assert command_of_tests(folder, "") == ".venv/bin/python -m pytest -q test_area.py"
    assert not (folder.root / "ran").exists()


def test_tests_without_their_runner_are_told(folder: Folder) -> None:
    python = folder.root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    lay_out(folder, test_area=FUNCTIONS, test_b=CASES)
    assert command_of_tests(folder, "") == ".venv/bin/python -m unittest -q test_b.py"
    told = "test_area.py needs pytest, which `.venv/bin/python` does not have: it was not run"
    assert missing_runner(folder, "") == told
    assert missing_runner(folder, "Make test_b.py pass.") is None
    review = review_of(folder, "Write a.py.")
    assert review.not_checked() is None  # nothing is changed
    Edits(folder).write_file("a.py", "x = 1\n")
    assert review.not_checked() == told
    (folder.root / ".venv/lib/python3.11/site-packages/pytest").mkdir(parents=True)
    assert review.not_checked() is None


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("main.py stops with an error. Fix it.", "main.py"),
        ("Running `main.py` fails.", "main.py"),
        ("Why does tools/run.py crash?", None),  # there is no such file
        ("Why does main.py fail?", "main.py"),
        ("Add a flag to main.py", None),
        ("test_area.py fails", None),  # tests have their own command
        ("/etc/main.py fails", None),
    ],
)
def test_the_program_that_the_task_says_to_fail(folder: Folder, task: str, name: str | None) -> None:
    lay_out(folder, main="x", test_area=SCRIPT)
    command = command_of_failing_program(folder, task)
    assert (command.split()[-1] if command else None) == name


def test_a_program_outside_the_folder_is_not_run(
    folder: Folder, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("outside") / "main.py"
    place.write_text("x")
    assert command_of_failing_program(folder, f"{place} fails") is None


def test_pipes_are_not_read_for_a_command(folder: Folder) -> None:
    for name in ("package.json", "Cargo.toml", "Makefile", "go.mod"):
        os.mkfifo(folder.root / name)
    assert command_of_tests(folder, "") is None


def failure(folder: Folder, name: str) -> str:
    """Return what a failing program of the folder prints."""
    with pytest.raises(ToolFailed) as raised:
        Shell(folder, 60).run_shell(f"{sys.executable} {name}")
    return raised.value.message


def test_the_files_of_a_traceback_are_named_the_last_first(folder: Folder) -> None:
    lay_out(folder, main="import tools.a\n", tools__a="from tools import b\n", tools__b="1 / 0\n")
    assert named_files(folder, failure(folder, "main.py")) == ["tools/b.py", "tools/a.py", "main.py"]
    assert named_files(folder, 'File "/etc/passwd", line 1\n/etc/hosts:1 ../x.py:3 nothing.py:2') == []


def test_the_modules_of_a_failing_test_and_of_an_import_are_named(folder: Folder) -> None:
    lay_out(folder, area=WRONG, test_area=SCRIPT, other="x = 1\n", app="from area import size\n")
    assert named_files(folder, failure(folder, "test_area.py")) == ["test_area.py", "area.py"]
    assert set(named_files(folder, failure(folder, "app.py"))) == {"app.py", "area.py"}
    assert named_files(folder, "FAILED test_area.py::test_area - assert") == [
        "test_area.py",
        "area.py",
    ]
    lay_out(folder, tools__a="from . import b\nfrom .c import d\nimport os, area\n", tools__b="", tools__c="")
    assert local_imports(folder, "tools/a.py") == ["tools/b.py", "tools/c.py", "area.py"]


def test_a_file_that_the_conversation_has_is_not_handed_over(folder: Folder) -> None:
    lay_out(folder, a="x = 1\n", b="y = 2\n", long="z = 3\n" * 1000)
    text, names = handed_over(folder, ["a.py", "b.py", "long.py", "gone.py"], ["before\nx = 1\nafter"])
    assert (text, names) == ("b.py:\n```\ny = 2\n```", ["b.py"])


def test_the_definition_of_an_unknown_name_is_told(folder: Folder) -> None:
    lay_out(folder, tools__area=RIGHT, main="print(area(1, 2))\n", other="from tools.area import size\n")
    place = "`area` is defined in tools/area.py: from tools.area import area"
    assert definitions(folder, failure(folder, "main.py")) == place
    assert definitions(folder, failure(folder, "other.py")) == ""
    assert definitions(folder, "nothing") == ""


def test_the_last_lines_of_tests_are_told() -> None:
    assert last_lines("a\nb") == "a\nb"
    assert last_lines("\n".join(map(str, range(100)))).splitlines()[:2] == ["(... 60 lines ...)", "60"]


def review_of(folder: Folder, task: str) -> Review:
    tools = {one.name: one for one in toolbox.built_in(folder)}
    review = Review(folder, tools)
    folder.changes.begin()
    review.begin(task)
    return review


def test_a_question_has_no_tools_that_write(folder: Folder) -> None:
    review = review_of(folder, "Why does area.py fail?")
    allowed = {one.name for one in toolbox.built_in(folder) if review.allows(one)}
    assert allowed == {"read_file", "list_files", "search_files", "run_shell", "run_python", "fetch_url"}
    review.begin("Rename a to b.")
    assert all(map(review.allows, toolbox.built_in(folder)))


def test_a_task_does_not_end_with_a_file_that_does_not_parse(folder: Folder) -> None:
    review = review_of(folder, "Write b.py.")
    with pytest.raises(ToolFailed):
        Edits(folder).write_file("b.py", "def f(:\n")
    assert str(review.fault()).startswith("`b.py` does not parse: line 1")
    Edits(folder).write_file("b.py", "x = 1\n")
    assert "No file was changed" not in str(review_of(folder, "Why?").fault())


def test_a_change_and_a_run_that_were_asked_for_are_missed(folder: Folder) -> None:
    review = review_of(folder, "Write b.py and run it.")
    assert "nothing was run" in str(review.fault())
    run = next(one for one in toolbox.built_in(folder) if one.name == "run_shell")
    result = events.ToolResultEvent(Call("run_shell", {"command": "ls"}), "", False, True, 0.0)
    review.note(result, run)
    assert "No file was changed" in str(review.fault())
    assert review.fault() is None  # asked once: the model may know better


def test_an_old_name_is_missed(folder: Folder) -> None:
    lay_out(folder, a="old = 1\n", b="import a\n\nprint(a.old)\n", c="older = 1\n")
    review = review_of(folder, "Rename old to new in all files.")
    Edits(folder).edit_file("a.py", "old", "new")
    assert str(review.fault()).splitlines() == [
        "`old` must become `new` here as well:",
        "b.py:3: print(a.old)",
    ]
    Edits(folder).edit_file("b.py", "old", "new")
    assert "old" not in str(review.fault())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = Library(tmp_path_factory.mktemp("library"))
    return Runtime.load(str(models.smollm2_gguf()), Choice(draft="off"), library, Silent())


def run(runtime: Any, folder: Folder, task: str, allowed: Any = EVERYTHING) -> tuple[list[Any], Agent]:
    """Return the events of a task; the only tool that the model can call before the end is a shell."""
    tools = [one for one in toolbox.built_in(folder) if one.name in ("run_shell", "edit_file")]
    worker = Agent(runtime, tools, Permission(allowed), folder=folder, max_tokens=24)
    worker.tools = {name: one for name, one in worker.tools.items() if name == "final_answer"}
    folder.changes.begin()
    return list(worker.run(task)), worker


def test_a_task_whose_tests_fail_is_not_done(small: Any, folder: Folder) -> None:
    lay_out(folder, area=WRONG, test_area=SCRIPT)
    found, worker = run(small, folder, "Make the failing test pass.")
    assert isinstance(found[0], CheckEvent)
    assert isinstance(found[1], CheckEvent)
    assert found[1].result.failed
    prompt = next(one.text for one in found if isinstance(one, PromptEvent))
    assert "AssertionError" in prompt
    assert "return width + height" in prompt  # of the module that the test imports
    again = sum(isinstance(one, StartOverEvent) for one in found)
    assert 1 <= again < MAX_ATTEMPTS  # one that samples may write no call at all, which is an end
    reasons = [one.reason for one in found if isinstance(one, NotYetEvent)]
    told = sum("fails:" in reason for reason in reasons)
    assert MAX_SAME + (again - 1) * MAX_SAME_AGAIN <= told <= MAX_SAME + again * MAX_SAME_AGAIN
    assert isinstance(found[-1], FinishedEvent)
    assert found[-1].reason in (events.UNVERIFIED, events.MAX_STEPS, events.LENGTH)
    assert worker.messages[-1]["role"] == "assistant"


def test_tests_that_have_failed_run_after_each_change(folder: Folder) -> None:
    lay_out(folder, area=WRONG, test_area=SCRIPT)
    review = review_of(folder, "Make the failing test pass.")
    tools = {one.name: one for one in toolbox.built_in(folder)} | {"run_tests": review.run_tests}

    def result_of(call: Call) -> ToolResultEvent:
        return run_call(call, tools, Permission(EVERYTHING))

    first = review.first_call()
    assert first is not None
    review.note_tests(result_of(first))
    assert "AssertionError" in str(review.known_failure())
    edit = Call("edit_file", {"path": "area.py", "old": "width + height", "new": "width * height"})
    changed = result_of(edit)
    review.note(changed, tools["edit_file"])
    assert review.call_after(result_of(edit), tools["edit_file"]) is None  # it failed
    again = review.call_after(changed, tools["edit_file"])
    assert again == first
    review.note_tests(result_of(first))
    assert review.known_failure() is None
    assert review.last_call() is None  # they need not run again
    assert all(map(review.allows, [tools["run_shell"], tools["edit_file"]]))
    slow = result_of(first)._replace(failed=True, seconds=60.0)
    review.note_tests(slow)
    assert review.call_after(changed, tools["edit_file"]) is None


def test_a_task_whose_tests_pass_is_done(small: Any, folder: Folder) -> None:
    lay_out(folder, area=RIGHT, test_area=SCRIPT)
    found, worker = run(small, folder, "Make the failing test pass.")
    results = [one.result for one in found if isinstance(one, CheckEvent) and one.result]
    assert [result.failed for result in results] == [False]  # nothing has changed since
    assert not any(isinstance(one, StartOverEvent) for one in found)
    assert found[-1].reason in (events.ANSWER, events.LENGTH)
    assert [message["role"] for message in worker.messages][:2] == ["system", "user"]


def test_tests_that_are_not_allowed_are_not_run_and_it_is_said(small: Any, folder: Folder) -> None:
    lay_out(folder, area=WRONG, test_area=SCRIPT)
    found, _ = run(small, folder, "Make the failing test pass.", HARMLESS)
    results = [one.result for one in found if isinstance(one, CheckEvent) and one.result]
    assert [(result.allowed, "not allowed" in result.text) for result in results] == [(False, True)]
    assert found[-1].reason in (events.ANSWER, events.LENGTH)


def test_the_same_failure_ends_an_attempt_and_another_one_does_not() -> None:
    attempt = Attempt.begin(None)
    for number in range(MAX_SAME):
        attempt.note(f"line {number}: AssertionError in {number / 7} s")
        attempt.note(f"another failure {chr(97 + number)}")
        assert not attempt.failed
    attempt.note("line 99: AssertionError in 0.5 s")
    assert attempt.failed


def test_a_new_attempt_begins_with_the_files_as_they_were(folder: Folder) -> None:
    lay_out(folder, a="x = 1\n")
    folder.changes.begin()
    Edits(folder).edit_file("a.py", "1", "2")
    Edits(folder).write_file("b.py", "y = 1\n")
    assert folder.changes.roll_back().restored == ["a.py", "b.py"]
    assert (folder.root / "a.py").read_text() == "x = 1\n"
    assert not (folder.root / "b.py").exists()
    assert folder.changes.lines() == []
    Edits(folder).edit_file("a.py", "1", "3")
    assert folder.changes.lines() == ["a.py (+1 -1)"]
