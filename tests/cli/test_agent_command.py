"""`localspec agent` as a process: its actions, questions, refusals, output and transcript.

SmolLM2 is a poor agent, but it repeats a call from its prompt.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import COMMAND, MODEL, SECONDS, Localspec, Ran, Terminal

from localspec.agent.events import ToolResultEvent
from localspec.cli import app
from localspec.cli.agent import display
from localspec.cli.agent.command import NOT_DONE
from localspec.cli.talk.terminal.keyboard import Keyboard
from localspec.output.tool_calls import Call
from localspec.tools import Tool

SERVER = Path(__file__).parents[1] / "agent" / "mcp_server.py"
SMALL = ("--temperature", "0", "--max-tokens", "60")
BRIEF = ("--system", "Answer with the call that you are told.")
WAITING = "touch begun; sleep 297"
READY = "\x1b[?25l\x1b[0m\x1b[?7l"  # the prompt is drawn for the first time: a line may be typed,
TAKEN = "\x1b[?2004l"  # and is taken
Open = Callable[..., Terminal]


def told(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"Answer with exactly this call: {call}"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def agent(localspec: Localspec, work: Path, *arguments: str, **more: Any) -> Ran:
    return localspec.run("agent", MODEL, *arguments, "--dir", str(work), *SMALL, **more)


def begun(work: Path) -> bool:
    """Wait a moment; return whether the waiting command has started."""
    time.sleep(0.1)
    return (work / "begun").exists()


def sleeping() -> set[int]:
    time.sleep(0.5)  # a killed process may still be listed
    return {one.pid for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "297"]}


def test_json_and_the_transcript_have_every_event(localspec: Localspec, work: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[agent]\nallow = ["write"]\n')
    found = agent(
        localspec,
        work,
        told("write_file", path="made.txt", text="new"),
        *("--tool", "write_file", "--max-steps", "1", "--json", "--stats"),
        *("--transcript", str(tmp_path / "kept" / "lines.jsonl")),
        LOCALSPEC_CONFIG=str(tmp_path / "config.toml"),
    )
    assert (work / "made.txt").read_text() == "new"
    values = found.values_with(NOT_DONE)
    assert (values["finish_reason"], values["steps"], values["calls"]) == ("max_steps", 1, 1)
    assert values["failed_calls"] == 0
    assert values["seconds"] >= values["prompt_seconds"] > 0
    assert values["tokens"] == len(values["transcript"][2]["token_ids"])
    assert values["speculation"].keys() == {
        *("drafter", "drafted", "accepted", "acceptance_rate", "tokens_per_pass")
    }
    lines = (tmp_path / "kept" / "lines.jsonl").read_text().splitlines()
    begin, *rest = map(json.loads, lines)
    assert (begin["event"], begin["continues"]) == ("begin", False)
    assert rest == values["transcript"]
    events = [line["event"] for line in values["transcript"]]
    assert events == ["task", "prompt", "answer", "call", "result", "finished"]
    assert values["transcript"][3]["arguments"] == {"path": "made.txt", "text": "new"}
    assert "1 answers, 1 calls (0 failed)" in found.err


def test_without_a_terminal_a_call_is_refused(localspec: Localspec, work: Path) -> None:
    ours, theirs = pty.openpty()  # stdin is a terminal, but stderr is a file
    given = ("--dir", str(work), *SMALL, *BRIEF, "--tool", "run_shell", "--max-steps", "1")
    try:
        done = subprocess.run(
            [*COMMAND, "agent", MODEL, told("run_shell", command="touch made.txt"), *given],
            stdin=theirs,
            capture_output=True,
            timeout=SECONDS,
            env=localspec.environment(),
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, done.stdout) == (NOT_DONE, b"")
    assert b"`run_shell` is not allowed, and there is no terminal to ask on" in done.stderr
    assert b"Stopped: reached `--max-steps`" in done.stderr
    assert list(work.iterdir()) == []


def test_only_the_answer_goes_to_stdout(localspec: Localspec, work: Path) -> None:
    given = told("final_answer", answer="well done")
    found = agent(localspec, work, *BRIEF, "--tool", "write_file", stdin=given)
    assert (found.code, found.out) == (0, "well done\n")
    assert found.err == ""


def test_a_conversation_goes_on(localspec: Localspec, work: Path, tmp_path: Path) -> None:
    (work / "a.txt").write_text("one\n")
    once = ("--tool", "read_file", "--max-steps", "1")
    found = agent(localspec, work, told("read_file", path="a.txt"), *once, "--continue")
    assert found.code == 1
    assert "No conversation to continue" in found.err
    agent(localspec, work, told("read_file", path="a.txt"), *once)
    more = ("agent", "--continue", "And b.txt?", "--dir", str(work), *SMALL, *once)
    found = localspec.run(*more, "--json")  # by the same model
    assert f"> {told('read_file', path='a.txt')}"[:90] in found.err
    assert "the model of the conversation" in found.err
    assert (
        found.values_with(NOT_DONE)["transcript"][2]["prompt_tokens"] > 200
    )  # with the first task and its result
    found = localspec.run(*more, "--transcript", str(tmp_path / "lines.jsonl"))  # of another file
    assert (found.code, "No conversation to continue" in found.err) == (1, True)


def test_user_functions_and_mcp_servers_are_tools(localspec: Localspec, work: Path, tmp_path: Path) -> None:
    (tmp_path / "my_own_tools.py").write_text(
        'def shout(text: str) -> str:\n    """Shout."""\n    return text.upper() + "!"\n'
    )
    servers = {"mcpServers": {"small": {"command": sys.executable, "args": [str(SERVER)]}}}
    (tmp_path / "servers.json").write_text(json.dumps(servers))
    found = agent(
        localspec,
        work,
        told("small_add", a=40, b=2),
        *("--mcp", str(tmp_path / "servers.json"), "--tool", "my_own_tools:shout", "--tool", "read_file"),
        *("--max-steps", "1", "--json", "--yes"),
        PYTHONPATH=str(tmp_path),
    )
    assert found.values_with(NOT_DONE)["transcript"][4]["text"] == "42"
    assert found.err == ""


QUESTION = "[a]lways this tool: "


def begin(terminal: Open, localspec: Localspec, work: Path, tool: str) -> Terminal:
    given = ("--dir", str(work), *SMALL, *BRIEF, "--max-steps", "1", "--tool", tool)
    return terminal(localspec, "agent", MODEL, *given, PROMPT_TOOLKIT_NO_CPR="1")


def ask(talk: Terminal, task: str, until: str = QUESTION) -> str:
    talk.until(READY)
    talk.type(f"{task}\r")
    talk.until(TAKEN)
    return talk.until(until)


def test_the_user_is_asked_and_sees_the_diff(localspec: Localspec, work: Path, terminal: Open) -> None:
    (work / "a.txt").write_text("one\n\x1b[2Jtwo\n")
    talk = begin(terminal, localspec, work, "edit_file")
    talk.until(READY)
    talk.type(told("edit_file", path="a.txt", old="one", new="1") + "\r")
    talk.until(TAKEN)
    talk.type("y\n")  # keys before a question do not answer it
    shown = talk.until(QUESTION)
    assert "-one" in shown
    assert "+1" in shown
    assert "\ufffd[2Jtwo" in shown
    assert "\x1b[2J" not in shown
    time.sleep(0.3)
    assert (work / "a.txt").read_text() == "one\n\x1b[2Jtwo\n"
    talk.type("n\n")
    talk.until("does not allow")
    ask(talk, told("edit_file", path="a.txt", old="one", new="1"))
    talk.type("y\n")
    talk.until("is changed")
    assert (work / "a.txt").read_text() == "1\n\x1b[2Jtwo\n"
    talk.until(READY)
    talk.type("\x04")
    assert talk.end() == 0
    assert "Traceback" not in talk.shown


def test_always_is_remembered_and_ctrl_c_works(localspec: Localspec, work: Path, terminal: Open) -> None:
    talk = begin(terminal, localspec, work, "run_shell")
    before = sleeping()
    assert "$ touch b" in ask(talk, told("run_shell", command="touch b"))
    talk.type("\n")
    talk.until("does not allow")
    assert not (work / "b").exists()
    assert f"$ {WAITING}" in ask(talk, told("run_shell", command=WAITING))
    talk.type("always\n")
    while not begun(work):
        assert talk.process.poll() is None
    assert len(sleeping()) > len(before)
    talk.type("\x03")
    talk.until("Stopped")
    assert sleeping() == before
    ask(talk, told("run_shell", command="touch c"), "printed nothing")
    assert (work / "c").exists()
    talk.until(READY)
    talk.type("Tell a very long story.\r")
    talk.until(TAKEN)
    kept = Path(localspec.environment()["LOCALSPEC_HOME"]) / "agent"
    while not any("very long story" in file.read_text("utf-8") for file in kept.glob("*.jsonl")):
        time.sleep(0.1)  # until the task has begun
    talk.interrupt()
    talk.until("Stopped")
    talk.until(READY)
    talk.type("\x04")
    assert talk.end() == 0
    assert "Traceback" not in talk.shown


def test_what_is_typed_during_a_task_waits_and_commands_work(
    localspec: Localspec, work: Path, terminal: Open
) -> None:
    talk = begin(terminal, localspec, work, "run_shell")
    talk.until(READY)
    talk.type(told("run_shell", command="touch b") + "\r")
    talk.until(TAKEN)
    talk.type("/chnges")  # during the task: no answer to the question
    talk.until(QUESTION)
    talk.type("y\n")
    talk.until("printed nothing")
    talk.until("/chnges")  # it waits in the line
    talk.type("\r")
    talk.until("Did you mean `/changes`?")
    for command, said in (
        ("/changes", "No changes"),
        ("/undo", "Nothing to undo"),
        ("/help", "forget the"),
        ("/new", "new"),
    ):
        talk.until(READY)
        talk.type(f"{command}\r")
        talk.until(TAKEN)
        talk.until(said)
    talk.until(READY)
    talk.type("/bye\r")
    assert talk.end() == 0


def test_a_change_that_needs_no_question_is_shown_and_can_be_undone(localspec: Localspec, work: Path) -> None:
    (work / "a.txt").write_text("one\ntwo\n", "utf-8")
    task = told("edit_file", path="a.txt", old="one", new="1")
    limits = (*BRIEF, "--tool", "edit_file", "--max-steps", "1", "--yes")
    done = agent(localspec, work, task, *limits)
    assert "\n-one\n+1\n" in done.err
    assert "Changed: a.txt (+1 -1); `/undo` or `localspec agent --undo` restores it" in done.err
    assert (work / "a.txt").read_text("utf-8") == "1\ntwo\n"
    localspec.run("agent", "--undo", task, "--dir", str(work)).refused(2, "`--undo` stands alone")
    undone = localspec.run("agent", "--undo", "--dir", str(work))
    assert (undone.code, undone.out, undone.err) == (0, "", "Restored: a.txt\n")
    assert (work / "a.txt").read_text("utf-8") == "one\ntwo\n"
    assert localspec.run("agent", "--undo", "--dir", str(work)).err == "Nothing to undo\n"


def test_ctrl_c_ends_a_task_and_is_in_the_transcript(
    localspec: Localspec, work: Path, interrupt: Callable[[subprocess.Popen[bytes]], Ran]
) -> None:
    kept = work / "lines.jsonl"
    process = localspec.start(
        *("agent", MODEL, told("run_shell", command=WAITING), "--dir", str(work), *SMALL, *BRIEF),
        *("--tool", "run_shell", "--yes", "--transcript", str(kept), "--max-steps", "1"),
    )
    before = sleeping()
    while not begun(work):
        assert process.poll() is None
    found = interrupt(process)
    assert (found.code, found.out) == (130, "")
    assert "Traceback" not in found.err
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["begin", "task", "prompt", "answer", "call", "stopped"]
    assert lines[-1]["reason"] == "interrupted"
    assert sleeping() <= before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["do", "--tool", "run_shel"], 2, "Unknown tool `run_shel`"),
        (["do", "--tool", "no_such_module:f"], 2, "`no_such_module` cannot be imported"),
        (["do", "--tool", "json:dumps"], 2, "`dumps` has no type"),
        (["do", "--allow", "writing"], 2, "Unknown access `writing`"),
        (["do", "--dir", "no-such-folder"], 2, "No such folder: `no-such-folder`"),
        (["do", "--mcp", "none.json"], 2, "No such file: `none.json`"),
        (["do", "--tool-format", "qwem"], 2, "Unknown tool-call format `qwem`"),
        (["do", "--temperature", "-1"], 2, "`temperature`"),
        (["do", "--max-steps", "0"], 2, "max-steps"),
        (["do", "--transcript", "/dev/null/x"], 1, "cannot be written"),
        (["do", "--draft-length", "fixd"], 2, "`fixd`"),
        ([" "], 1, "is empty"),
        (["--json"], 1, "is empty"),
        (["do \udcff"], 1, "is not UTF-8 text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_options_are_refused_before_loading(
    arguments: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_CONFIG", os.devnull)
    monkeypatch.setattr(sys, "argv", ["localspec", "agent", MODEL, *arguments])
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(SystemExit) as left:
            app.main()
    assert isinstance(left.value.code, int)
    Ran(left.value.code, *capfd.readouterr()).refused(code, said)


def test_json_on_a_terminal_needs_a_task(localspec: Localspec, terminal: Open) -> None:
    talk = terminal(localspec, "agent", MODEL, "--json")
    assert talk.end() == 1
    assert "`--json` needs a task" in talk.shown


def test_the_end_of_a_long_result_is_shown() -> None:
    def shown(count: int) -> list[str]:
        text = "\n".join(map(str, range(count)))
        return display.format_result(ToolResultEvent(Call("run_shell", {}), text, False, True, 0.0)).split()

    assert shown(9) == list("012345678")
    assert shown(100) == [*"012", "(...", "92", "lines", "...)", "95", "96", "97", "98", "99"]


def test_the_end_of_a_long_call_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that a call does is hidden at its end, nor by characters that move the cursor."""
    command = "echo safe " + "x" * 5000 + "; rm -r ~"
    line = display.format_call(Call("run_shell", {"command": command}))
    assert line.startswith("run_shell(command='echo safe xxx")
    assert line.endswith("xxx; rm -r ~')")
    assert "(... 4,840 characters ...)" in line
    result = ToolResultEvent(Call("run_shell", {}), "a" * 5000 + "the end\nb", False, True, 0.0)
    assert "the end\n  b" in display.format_result(result)
    monkeypatch.setattr("builtins.input", lambda: "y")
    monkeypatch.setattr(display, "discard_input", lambda: None)
    many = "\n".join(["$ true", *["#"] * 500, "rm -r ~\r$ true\u202e"])
    assert display.ask_permission(Keyboard(), Tool("run_shell", "", {}, print, "run"), many) == "yes"
    shown = capsys.readouterr().err
    assert "rm -r ~\ufffd$ true\ufffd\n\nAll 502 lines are above. Allow this?" in shown
