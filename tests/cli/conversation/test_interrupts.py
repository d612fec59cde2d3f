"""Ctrl-C, closed pipes, and output on a terminal."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from command import COMMAND, MODEL, SECONDS, Localspec, Ran, Terminal

LONG = ("Write a very long story about a lighthouse.", "--max-tokens", "1500")
Interrupt = Callable[[subprocess.Popen[bytes]], Ran]
Open = Callable[..., Terminal]


def test_ctrl_c_while_importing_leaves_nothing(fresh: Localspec, gguf: Path, interrupt: Interrupt) -> None:
    process = fresh.start("chat", str(gguf), "hi", "--max-tokens", "3")
    assert process.stderr is not None
    while b"Converting" not in process.stderr.readline():
        assert process.poll() is None
    found = interrupt(process)
    assert (found.code, found.out) == (130, "")
    assert "Traceback" not in found.err
    assert fresh.names() == set()


def test_ctrl_c_while_answering(localspec: Localspec, interrupt: Interrupt) -> None:
    process = localspec.start("chat", MODEL, *LONG)
    assert process.stdout is not None
    assert process.stdout.read(8)
    found = interrupt(process)
    assert found.code == 130
    assert found.err == ""


def test_a_closed_pipe_ends_the_answer_quietly(localspec: Localspec) -> None:
    process = localspec.start("chat", MODEL, *LONG)
    assert process.stdout is not None
    assert process.stderr is not None
    assert len(process.stdout.read(10)) == 10
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(SECONDS) != 0


def test_a_pipe_closed_from_the_start(localspec: Localspec) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, "parts"],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            env=localspec.environment(),
            timeout=SECONDS,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode != 0
    assert done.stderr == b""


def test_json_on_a_terminal_needs_a_prompt(localspec: Localspec, terminal: Open) -> None:
    talk = terminal(localspec, "chat", MODEL, "--json")
    assert talk.end() == 1
    assert "`--json` needs a prompt" in talk.shown


def test_colours_need_a_capable_terminal(localspec: Localspec, terminal: Open) -> None:
    wrong = ("chat", MODEL, "hi", "--draft-length", "fixd")
    coloured = terminal(localspec, *wrong)
    assert coloured.end() == 2
    assert "\x1b[" in coloured.shown
    for more in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = terminal(localspec, *wrong, **more)
        assert plain.end() == 2
        assert "error: Unknown draft-length policy `fixd`" in plain.shown
        assert "\x1b" not in plain.shown
