"""Ctrl-C, closed pipes, and a conversation on a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import time
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


def test_a_reader_that_leaves_ends_the_answer_quietly(localspec: Localspec) -> None:
    process = localspec.start("chat", MODEL, *LONG)
    assert process.stdout is not None
    assert process.stderr is not None
    assert len(process.stdout.read(10)) == 10
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(SECONDS) != 0


def test_a_reader_that_was_never_there(localspec: Localspec) -> None:
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


def test_a_conversation(localspec: Localspec, terminal: Open) -> None:
    talk = terminal(localspec, "chat", MODEL, "--stats", "--max-tokens", "300", "--draft", "off")
    talk.until("> ")
    talk.type("Say hello.\n")
    first = talk.until(" a second")
    talk.until("> ")
    talk.type("Write a very long story about a lighthouse, with many words.\n")
    talk.until("\n")
    for _ in range(4):  # words of the answer
        talk.until(" ")
    talk.type("\x03")
    second = talk.until(" a second")
    talk.until("> ")
    talk.type("What did I ask first?\n")
    third = talk.until(" a second")
    talk.until("> ")
    talk.type("\x04")
    assert talk.end() == 0
    prompts, answers = zip(*(numbers(turn) for turn in (first, second, third)), strict=True)
    assert answers[1] < 300  # stopped
    assert prompts[0] < prompts[1] < prompts[2]  # each turn knows those before
    assert prompts[2] >= prompts[1] + answers[1]  # and what was said before Ctrl-C
    assert "Traceback" not in talk.shown


def numbers(turn: str) -> tuple[int, int]:
    """Return the tokens of prompt and answer that a turn's statistics tell."""
    found = re.search(r"prompt (\d+) tokens .* answer (\d+) tokens", turn)
    assert found is not None, turn
    return int(found[1]), int(found[2])


def test_ctrl_c_at_the_prompt_and_empty_lines_do_not_end_it(localspec: Localspec, terminal: Open) -> None:
    talk = terminal(localspec, "chat", MODEL)
    talk.until("> ")
    talk.type("half a questio")
    talk.until("questio")
    time.sleep(1)  # between a key and waiting for the next one, readline keeps a signal until that comes
    talk.type("\x03")
    talk.until("Ctrl-D leaves")
    talk.until("> ")
    talk.type("\n")
    talk.until("> ")
    talk.type("\x04")
    assert talk.end() == 0
    assert "Traceback" not in talk.shown


def test_json_on_a_terminal_needs_a_prompt(localspec: Localspec, terminal: Open) -> None:
    talk = terminal(localspec, "chat", MODEL, "--json")
    assert talk.end() == 1
    assert "`--json` needs a prompt" in talk.shown


def test_colours_are_for_terminals_that_want_them(localspec: Localspec, terminal: Open) -> None:
    wrong = ("chat", MODEL, "hi", "--lookahead", "fixd")
    coloured = terminal(localspec, *wrong)
    assert coloured.end() == 2
    assert "\x1b[" in coloured.shown
    for more in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = terminal(localspec, *wrong, **more)
        assert plain.end() == 2
        assert "error: There is no lookahead called `fixd`" in plain.shown
        assert "\x1b" not in plain.shown
