"""The status line: after a delay, only on a terminal, and removed without a trace."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Generator
from time import monotonic, sleep

import pyte
import pytest

from localspec.cli import console, progress
from localspec.cli.talk.screen import PlainWriter, stream
from localspec.core.types import Step
from localspec.errors import LocalspecError


class Terminal(io.StringIO):
    """A stderr that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def at_terminal(monkeypatch: pytest.MonkeyPatch, soon: float) -> Terminal:
    """Make stderr a terminal; not a fixture, because pytest would replace it again."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(console, "DELAY", soon)
    return found


def seen(terminal: Terminal, text: str) -> bool:
    """Wait until `text` was written."""
    ends = monotonic() + 20
    while text not in terminal.getvalue() and monotonic() < ends:
        sleep(0.01)
    return text in terminal.getvalue()


def test_the_status_line_is_shown_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, waiting = at_terminal(monkeypatch, 0.0), console.Waiting()
    for text in ("Reading", "Writing"):
        waiting.show(text)
        assert seen(terminal, text)
    waiting.clear()
    waiting.clear()
    assert sys.stderr is terminal
    screen = pyte.Screen(80, 5)
    pyte.Stream(screen).feed(terminal.getvalue().replace("\n", "\r\n"))
    assert not "".join(screen.display).strip()
    assert not screen.cursor.hidden


def test_a_short_wait_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, waiting = at_terminal(monkeypatch, 60.0), console.Waiting()
    waiting.show("Reading")
    waiting.clear()
    assert terminal.getvalue() == ""


def test_an_interrupt_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, show = at_terminal(monkeypatch, 0.2), console.Waiting.show

    def interrupted(self: console.Waiting, text: str) -> None:
        show(self, text)
        raise KeyboardInterrupt

    def steps() -> Generator[Step, None, None]:
        yield from ()

    monkeypatch.setattr(console.Waiting, "show", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(stream(steps(), PlainWriter(io.StringIO()), thinking=None))
    sleep(0.5)
    assert terminal.getvalue() == ""


def test_without_a_terminal_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    at_terminal(monkeypatch, 0.0)
    stderr, waiting = io.StringIO(), console.Waiting()
    monkeypatch.setattr(sys, "stderr", stderr)
    waiting.show("Reading")
    sleep(0.05)
    waiting.clear()
    assert stderr.getvalue() == ""


EVIL = "a\x1b[8m\x9b2J\u202eb\u200b"
CLEAN = "a\ufffd[8m\ufffd2J\ufffdb\ufffd"


@pytest.mark.parametrize("colour", ["", console.DIM])
def test_nothing_hidden_is_printed_for_people(
    colour: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = at_terminal(monkeypatch, 60.0)
    monkeypatch.delenv("NO_COLOR", raising=False)
    console.say(EVIL, colour)
    console.say_parts([(EVIL, console.CYAN)])
    console.show(LocalspecError(EVIL, EVIL))
    progress.Terminal().say(EVIL)
    with progress.Terminal().step(EVIL):
        pass
    console.print_text(EVIL)
    console.print_parts([(EVIL, colour)])
    shown = terminal.getvalue() + capsys.readouterr().out
    assert shown.count(CLEAN) == 8
    for own in (console.RED, console.CYAN, console.DIM, console.PLAIN):
        shown = shown.replace(own, "")
    assert not set(shown) & set(EVIL) - set("ab[8m2J")


def test_data_stays_exact(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_answer(EVIL)
    console.print_exact(EVIL)
    assert capsys.readouterr().out == f"{EVIL}\n{EVIL}"
    console.print_json({"a": EVIL})
    assert json.loads(capsys.readouterr().out) == {"a": EVIL}
