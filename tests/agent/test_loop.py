"""The agent's loop: parsed turns, allowed calls, and tasks of a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agent_tasks
import pytest

import models
from localspec import plugins
from localspec.agent.events import (
    ANSWER,
    AnswerEvent,
    FinishedEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    WaitingEvent,
)
from localspec.agent.loop import Agent, tool_format_of
from localspec.agent.loop_guard import FINAL, MAX_FAILURES, MAX_REPEATS, LoopGuard
from localspec.agent.permission import KINDS, Permission
from localspec.agent.tools import toolbox
from localspec.agent.tools.folder import Folder
from localspec.agent.turn import Turn, parse_turn
from localspec.errors import BadValue, EmptyPrompt
from localspec.library import Library, Silent
from localspec.output.tool_calls import Call
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.tools import Tool, ToolFailed, tool

SUITE = Path(__file__).parents[2] / "suites" / "agent.toml"
READ = Call("read_file", {"path": "a.py"})
WRITE = Call("write_file", {"path": "a.py", "text": "x"})


def looked(path: str) -> str:
    """Look at a file."""
    return path


READS, WRITES = tool(looked, access="read"), tool(looked, access="write")


def returned(call: Call, *, failed: bool = False, allowed: bool = True) -> ToolResultEvent:
    return ToolResultEvent(call, "found", failed, allowed, 0.0)


def test_after_a_failure_the_model_must_try_again() -> None:
    guard = LoopGuard()
    assert guard.barred == set()
    for at in range(MAX_FAILURES):
        guard.note(returned(Call("read_file", {"path": str(at)}), failed=True), READS)
        assert guard.barred == {FINAL}
    guard.note(returned(Call("read_file", {"path": "b"}), failed=True), READS)
    assert guard.barred == set()


def test_a_success_or_a_refusal_lets_the_model_answer() -> None:
    guard = LoopGuard()
    guard.note(returned(READ, failed=True), READS)
    guard.note(returned(Call("read_file", {"path": "b"})), READS)
    assert guard.barred == set()
    guard.note(returned(WRITE, failed=True, allowed=False), WRITES)
    assert guard.barred == set()


def test_a_call_is_repeated_only_after_a_change() -> None:
    guard = LoopGuard()
    guard.check(READ)
    guard.note(returned(READ), READS)
    with pytest.raises(ToolFailed, match="exactly this before; the result was:\nfound"):
        guard.check(READ)
    guard.note(returned(READ, failed=True), READS)
    assert guard.barred == {"read_file"}  # the result is there: the model may answer
    guard.note(returned(WRITE), WRITES)
    guard.check(READ)
    assert not guard.stuck


def test_going_back_and_forth_is_a_circle() -> None:
    text = "one"
    guard, runs = LoopGuard(lambda: text), tool(paged, access="run")
    run, forth, back = (Call("paged", {"path": name}) for name in ("run", "forth", "back"))
    for call, made, after in ((run, runs, "one"), (forth, WRITES, "two"), (run, runs, "two")):
        guard.check(call, made)
        text = after
        guard.note(returned(call, failed=made is runs), made)
    with pytest.raises(ToolFailed, match="would fail again"):
        guard.check(run, runs)
    guard.check(back, WRITES)
    text = "one"
    guard.note(returned(back), WRITES)
    with pytest.raises(ToolFailed, match="would fail again"):
        guard.check(run, runs)
    with pytest.raises(ToolFailed, match="exactly this before"):
        guard.check(forth, WRITES)
    assert guard.repeats == 3


def test_a_failed_call_that_is_repeated_is_no_reason_to_give_up() -> None:
    guard = LoopGuard()
    guard.note(returned(READ, failed=True), READS)
    with pytest.raises(ToolFailed, match="it would fail again"):
        guard.check(READ)
    guard.note(returned(READ, failed=True), READS)
    assert guard.barred == {FINAL, "read_file"}


def paged(path: str, first: int = 1, below: str = ".") -> str:
    """Look at a part of a file."""
    return path


@pytest.mark.parametrize(
    ("arguments", "same"),
    [
        ({"path": "a b.py"}, True),
        ({"path": "./a  b.py ", "first": 1}, True),
        ({"path": "a b.py", "below": "./."}, True),
        ({"path": "a b.py", "first": 2}, False),
        ({"path": "ab.py"}, False),
        ({"path": "a b.py", "other": None}, False),
    ],
)
def test_a_call_that_hardly_differs_is_a_repetition(arguments: dict[str, Any], same: bool) -> None:
    guard, reads = LoopGuard(), tool(paged, access="read")
    guard.note(returned(Call("paged", {"path": "a b.py"})), reads)
    if same:
        with pytest.raises(ToolFailed, match="exactly this before"):
            guard.check(Call("paged", arguments), reads)
    else:
        guard.check(Call("paged", arguments), reads)


def test_programs_that_differ_in_blanks_are_others() -> None:
    guard, runs = LoopGuard(), tool(paged, access="run")
    guard.note(returned(Call("paged", {"path": "if x:\n  y"})), runs)
    guard.check(Call("paged", {"path": "if x:\n y"}), runs)
    with pytest.raises(ToolFailed):
        guard.check(Call("paged", {"path": "if x:\n  y"}), runs)


def test_a_model_that_repeats_itself_is_stopped() -> None:
    guard = LoopGuard()
    guard.note(returned(READ), READS)
    for _ in range(MAX_REPEATS):
        assert not guard.stuck
        with pytest.raises(ToolFailed):
            guard.check(READ)
    assert guard.stuck


def test_an_answer_is_parsed_into_reasoning_text_and_calls() -> None:
    written = '{"name": "read_file", "arguments": {"path": "a.py"}}'
    text = f"<think>Hm.</think>\nI look.\n<tool_call>\n{written}\n</tool_call>"
    turn = Turn()
    events = list(
        parse_turn(
            [(piece, ()) for piece in text], plugins.part("tool_formats", "qwen").made_by(), turn, False
        )
    )
    assert (turn.reasoning, turn.text, turn.calls) == ("Hm.", "I look.\n", [READ])
    assert "".join(one.text for one in events if isinstance(one, TextEvent) and one.is_reasoning) == "Hm."
    message = turn.message()
    assert (message["content"], message["reasoning_content"]) == ("I look.", "Hm.")
    assert message["tool_calls"][0]["function"] == {"name": "read_file", "arguments": {"path": "a.py"}}


def test_a_call_in_progress_is_reported() -> None:
    pieces = [
        "I look.",
        '<tool_call>{"name": "read_file",',
        ' "arguments": {"path": "a.py"}}',
        "</tool_call>",
    ]
    events = list(
        parse_turn(
            [(piece, ()) for piece in pieces], plugins.part("tool_formats", "qwen").made_by(), Turn(), False
        )
    )
    assert events == [
        TextEvent("I look."),
        WaitingEvent(len(pieces[1]), "read_file"),
        WaitingEvent(len(pieces[1] + pieces[2]), "read_file(path='a.py')"),
    ]


def test_unfinished_reasoning_is_not_an_answer() -> None:
    turn = Turn()
    events = list(
        parse_turn(
            [("<think>Hm", ()), (". </th", ())], plugins.part("tool_formats", "qwen").made_by(), turn, False
        )
    )
    assert (turn.reasoning, turn.text, turn.calls) == ("Hm. </th", "", [])
    assert all(one.is_reasoning for one in events if isinstance(one, TextEvent))


def test_a_tool_format_is_chosen_by_the_template() -> None:
    assert tool_format_of("... <tool_call> ...") == "qwen"
    assert tool_format_of("... [TOOL_CALLS] ...") == "mistral"
    assert tool_format_of("... <|python_tag|> ...") == "llama"
    assert tool_format_of("{{ messages }}") == "json"


def test_the_prompt_has_the_overview_and_named_files_first(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("y = 2\n")
    (tmp_path / "long.txt").write_text("z" * 9000)
    (tmp_path / "c.bin").write_bytes(b"\xff\x00")
    place, task = Folder(tmp_path), "Change a.py, long.txt and c.bin."
    there, rest = toolbox.overview(place), f"a.py:\n```\nx = 1\n```\n\n{task}"
    text, names = toolbox.briefed(place, task)
    assert names == ["a.py"]
    assert text == f"{there}\n\n{rest}"
    known = [{"role": "system", "content": "Work."}, {"role": "user", "content": text}]
    assert toolbox.briefed(place, task, known) == (rest, ["a.py"])
    (tmp_path / "d.py").write_text("w = 3\n")
    assert toolbox.briefed(place, task, known) == (f"{toolbox.overview(place)}\n\n{rest}", ["a.py"])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = Library(tmp_path_factory.mktemp("library"))
    return Runtime.load(str(models.smollm2_gguf()), Choice(draft="off"), library, Silent())


def agent(runtime: Any, tools: list[Tool], **options: Any) -> Agent:
    return Agent(runtime, tools, Permission(KINDS), max_tokens=48, **options)


def test_two_tools_of_one_name_and_no_task_are_refused(small: Any) -> None:
    with pytest.raises(BadValue, match="Two tools are called `looked`"):
        agent(small, [READS, WRITES])
    with pytest.raises(EmptyPrompt):
        next(agent(small, [READS]).run("  "))


def test_a_small_model_calls_its_tools_and_ends(small: Any) -> None:
    worker = agent(small, [READS], max_steps=3)
    events = list(worker.run("Look at a.py"))
    called = [one.call for one in events if isinstance(one, ToolCallEvent)]
    assert all(call.name == "looked" and isinstance(call.arguments["path"], str) for call in called)
    assert isinstance(events[-1], FinishedEvent)
    assert sum(isinstance(one, AnswerEvent) for one in events) <= 3
    roles = [message["role"] for message in worker.messages]
    assert roles[:3] == ["system", "user", "assistant"]
    assert roles.count("tool") == len(called)


@pytest.mark.large
def test_a_task_is_done_the_same_way_with_a_draft(tmp_path: Path) -> None:
    task = next(one for one in agent_tasks.read(SUITE) if one.name == "constant")
    name, held, transcripts = str(models.large("qwen2.5-coder-1.5b").name), [], []
    for draft in ("auto", "off"):
        folder = tmp_path / draft
        folder.mkdir()
        task.lay_out(folder)
        runtime = Runtime.load(name, Choice(draft=draft), Library(), Silent(), held)
        held = runtime.engines
        place = Folder(folder)
        worker = Agent(runtime, toolbox.built_in(place), Permission(KINDS), max_tokens=256)
        events = list(worker.run(toolbox.briefed(place, task.text)[0]))
        assert isinstance(events[-1], FinishedEvent)
        assert events[-1].reason == ANSWER
        assert task.solved(folder, events[-1].text)
        answers = [one.answer for one in events if isinstance(one, AnswerEvent)]
        assert answers[1].prompt_seconds < answers[0].prompt_seconds  # what was read is not read again
        transcripts.append([answer.token_ids for answer in answers])
        if draft == "auto":
            assert sum(
                one.stats.sources["grammar"].accepted for one in answers if "grammar" in one.stats.sources
            )
    assert transcripts[0] == transcripts[1]
