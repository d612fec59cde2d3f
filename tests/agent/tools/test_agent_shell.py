"""Tools that run programs: time and output limits, and no leftover processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from localspec.agent.tools.folder import Folder
from localspec.agent.tools.shell import Shell, tools
from localspec.agent.tools.text_files import MAX_OUTPUT
from localspec.output.visible import visible
from localspec.tools import ToolFailed


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(Folder(tmp_path), 60)


def gone(pid: int) -> bool:
    """Wait for a process to end; a zombie counts as ended."""
    for _ in range(100):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_the_output_is_returned(shell: Shell, tmp_path: Path) -> None:
    assert shell.run_shell("echo a; echo b >&2; pwd") == f"a\nb\n{tmp_path.resolve()}"
    assert shell.run_shell("true") == "(it printed nothing)"
    with pytest.raises(ToolFailed) as error:
        shell.run_shell("echo why; exit 3")
    assert error.value.message == "why\n(exit code 3)"


def test_python_runs_in_the_folder(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 41\n")
    assert shell.run_python("import mine\nprint(mine.x + 1)") == "42"
    assert shell.run_python("import mine\nmine.x + 1  # as at a prompt") == "42"
    assert shell.run_python("x = 1; x + 1") == "(it printed nothing)"
    made = tools(Folder(tmp_path))[1]
    assert made.preview
    for run in (shell.run_python, made.preview):  # models mix the two up, and the user has allowed Python
        with pytest.raises(ToolFailed, match="is a shell command") as error:
            run("ls mine.py")
        assert error.value.hint == "Call run_shell with it"
    with pytest.raises(ToolFailed, match="ZeroDivisionError"):
        shell.run_python("1 / 0")
    with pytest.raises(ToolFailed, match="EOFError"):
        shell.run_python("input()")
    assert shell.run_shell("cat") == "(it printed nothing)"


@pytest.mark.parametrize("code", ["print('a\0b')", "print('\ud800')"])
def test_invalid_python_fails(shell: Shell, code: str) -> None:
    with pytest.raises(ToolFailed):
        shell.run_python(code)


def test_a_command_that_cannot_be_started(shell: Shell) -> None:
    with pytest.raises(ToolFailed, match="cannot be started"):
        shell.run_shell("echo \0")
    with pytest.raises(ToolFailed, match="cannot be started"):
        shell.run_shell("echo " + "x" * 10_000_000)


def test_a_hanging_program_is_killed_with_its_children(tmp_path: Path) -> None:
    shell = Shell(Folder(tmp_path), 1)
    command = "(trap '' TERM; sleep 300) & echo $! > a; setsid sleep 300 & echo $! > b; echo begun; sleep 300"
    with pytest.raises(ToolFailed) as error:
        shell.run_shell(command)
    assert error.value.message == "Stopped after 1 seconds. begun"
    assert all(gone(int((tmp_path / name).read_text())) for name in "ab")


def test_leftover_children_are_killed(shell: Shell, tmp_path: Path) -> None:
    assert shell.run_shell("sleep 300 & echo $! > pid; echo done") == "done"
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_daemon_does_not_block_the_call(shell: Shell, tmp_path: Path) -> None:
    assert shell.run_shell("setsid sleep 300 & echo $! > pid; echo done") == "done"
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_long_output_is_shortened(shell: Shell) -> None:
    told = shell.run_shell("echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert told.startswith("first\nxxx")
    assert told.endswith("xxx\nlast")
    assert "bytes left out" in told
    assert len(told) < MAX_OUTPUT + 100


def test_an_endless_output_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="Stopped after 1 seconds") as error:
        Shell(Folder(tmp_path), 1).run_shell("yes")
    assert len(error.value.message) < MAX_OUTPUT + 200


def test_binary_output_is_made_printable(shell: Shell) -> None:
    told = shell.run_shell("head -c 3000 /dev/urandom; printf '\\033]0;title\\007\\033[2J\\r'")
    assert visible(told) == told
    assert not set(told) & {"\x1b", "\x07", "\r", "\0"}
    assert "]0;title" in told


def test_a_character_is_not_split(shell: Shell) -> None:
    told = shell.run_shell(f"printf '{'ä' * 6000}'")
    assert told == "ä" * 6000


def test_ctrl_c_kills_the_program(shell: Shell, tmp_path: Path) -> None:
    def press() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
            time.sleep(0.02)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        shell.run_shell("echo $$ > pid; sleep 300")
    thread.join()
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_preview_is_the_whole_command(tmp_path: Path) -> None:
    shown = {tool.name: tool for tool in tools(Folder(tmp_path))}
    assert shown["run_shell"].preview is not None
    assert shown["run_shell"].preview(command="ls " + "x" * 5000) == "$ ls " + "x" * 5000 + "\n"
    assert {tool.access for tool in shown.values()} == {"run"}
