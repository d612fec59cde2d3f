"""A transcript holds the conversation as the model saw it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import models
from localspec.agent import resume, transcript
from localspec.agent.events import StartOverEvent, ToolCallEvent
from localspec.agent.loop import Agent
from localspec.agent.permission import EVERYTHING, Permission
from localspec.agent.tools import toolbox
from localspec.agent.tools.folder import Folder
from localspec.errors import PromptError
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime

BEGIN = '{"event": "begin", "model": "a"}\n'
CALL = '{"event": "call", "name": "a", "arguments": {}}\n'  # of no answer
NULL = '{"event": "answer", "text": null}\n'


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = Library(tmp_path_factory.mktemp("library"))
    return Runtime.load(str(models.smollm2_gguf()), Choice(draft="off"), library, Silent())


def agent(runtime: Any, folder: Folder, tools: list[str]) -> Agent:
    chosen = toolbox.chosen(folder, tools)
    return Agent(runtime, chosen, Permission(EVERYTHING), folder=folder, max_tokens=40, max_steps=6)


def written(worker: Agent, tasks: list[str], until: type | None = None) -> list[dict[str, Any]]:
    """Work on tasks, the last one until an event of a type has come; return the transcript, as read again."""
    lines = [transcript.begin_line("a", continues=False)]
    for task in tasks:
        events = worker.run(task)
        for event, line in transcript.lines(events, task):
            lines += [line] if line else []
            if task is tasks[-1] and until and isinstance(event, until):
                lines.append(transcript.stopped_line(KeyboardInterrupt(), worker.messages))
                events.close()
                break
    return list(map(json.loads, map(json.dumps, lines)))


@pytest.mark.parametrize("tools", [["read_file"], ["list_files", "read_file"]])
def test_the_messages_of_several_tasks_come_back(small: Any, tmp_path: Path, tools: list[str]) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    worker = agent(small, Folder(tmp_path), tools)
    lines = written(worker, ["Look at a.py.", "Tell me what is in it."])
    assert any(line["event"] == "call" for line in lines)
    assert resume.messages_of(lines) == worker.messages[1:]


def test_what_was_handed_back_comes_back_and_what_was_given_up_does_not(small: Any, tmp_path: Path) -> None:
    (tmp_path / "area.py").write_text("def area(a, b):\n    return a + b\n")
    (tmp_path / "test_area.py").write_text("from area import area\n\nassert area(3, 4) == 12\n")
    worker = agent(small, Folder(tmp_path), ["run_python"])
    worker.tools = {name: one for name, one in worker.tools.items() if name == "final_answer"}
    lines = written(worker, ["Make the failing test pass."])
    told = [line["event"] for line in lines]
    assert {"tests", "prompt", "not_yet", "start_over"} <= {*told}
    assert resume.messages_of(lines) == worker.messages[1:]
    lines = written(worker, ["Make the failing test pass."], StartOverEvent)
    assert resume.messages_of(lines)[-1]["role"] == "user"


def test_a_call_that_was_stopped_has_a_result(small: Any, tmp_path: Path) -> None:
    worker = agent(small, Folder(tmp_path), ["read_file"])
    lines = written(worker, ["Look at a.py."], ToolCallEvent)
    assert lines[-1]["event"] == "stopped"
    assert resume.messages_of(lines) == worker.messages[1:]
    assert worker.messages[-1]["content"] == "(stopped by the user)"


def test_the_last_conversation_of_a_file_is_read(small: Any, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    worker = agent(small, Folder(tmp_path / "work"), ["read_file"])
    lines = [*written(worker, ["Old."]), *written(worker, ["New."])[:0]]
    other = agent(small, Folder(tmp_path / "work"), ["read_file"])
    lines += written(other, ["Look.", "Look again."])
    file = tmp_path / "kept.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"event": "ans', "utf-8")
    found = resume.read(file)
    assert (found.model, found.messages) == ("a", other.messages[1:])
    assert [task for task, _ in found.tasks] == ["Look.", "Look again."]


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "[]\n", "\xff", '"begin"', '{"event": "task"}\n'),
        *(BEGIN, BEGIN + '{"event": "prompt"}\n', BEGIN + CALL, BEGIN + NULL, '{"event": "begin"}\n'),
    ],
)
def test_a_file_without_a_conversation_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text(text, "latin-1")
    with pytest.raises(PromptError, match="No conversation to continue"):
        resume.read(file)
    with pytest.raises(PromptError, match="No conversation to continue"):
        resume.read(tmp_path / "none.jsonl")
