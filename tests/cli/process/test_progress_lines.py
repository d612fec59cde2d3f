"""The lines of long steps: the right unit, the time left where it is known, none that outlives its step."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pyte
import pytest
from command import Localspec, Terminal

from localspec.cli import console, progress
from localspec.cli.progress import AUDIO, Step, format_left
from localspec.library.progress import BYTES

COLUMNS, ROWS = 100, 12


class Screen(io.StringIO):
    """A terminal whose screen can be read."""

    def __init__(self) -> None:
        super().__init__()
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.Stream(self._screen)

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return the lines that are on the screen now."""
        self._stream.feed(self.getvalue().replace("\n", "\r\n"))
        self.truncate(0)
        self.seek(0)
        return [line.rstrip() for line in self._screen.display if line.strip()]


def at_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Return the screen that is stderr from now on; pytest replaces stderr after each fixture."""
    found = Screen()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    return found


def shown(terminal: progress.Terminal, screen: Screen) -> list[str]:
    """Return the screen as it is now, not at the next frame."""
    assert terminal._live is not None
    terminal._live.refresh()
    return screen.lines()


@pytest.mark.parametrize(
    ("step", "seconds", "count", "left"),
    [
        (Step("a", 12, "prompt", 0.0, 3), 30.0, "3 of 12 prompts", "1:30 left"),
        (Step("a", 1, "layer", 0.0, 0), 30.0, "0 of 1 layer", ""),
        (Step("a", 12, "prompt", 0.0, 12), 30.0, "12 of 12 prompts", ""),
        (Step("a", None, "text", 0.0, 1), 30.0, "1 text", ""),
        (Step("a", None, "", 0.0, 0), 30.0, "", ""),
        (Step("a", 98_400_000, BYTES, 0.0, 24_600_000), 10.0, "24.6 MB of 98.4 MB, 2.5 MB/s", "0:30 left"),
        (Step("a", None, BYTES, 0.0, 1500), 0.1, "1.5 kB", ""),
        (Step("a", 3480, AUDIO, 0.0, 200), 100.0, "3:20 of 58:00", "27:20 left"),
        (Step("a", None, AUDIO, 0.0, 3723), 100.0, "1:02:03", ""),
        (Step("a", 8000, "second", 0.0, 1000), 1000.0, "1,000 of 8,000 seconds", "1:56:40 left"),
    ],
)
def test_counts_are_in_their_unit_and_the_time_left_is_told_where_it_is_known(
    step: Step, seconds: float, count: str, left: str
) -> None:
    assert step.count(seconds) == count
    assert format_left(step.seconds_left(seconds)) == left


def test_one_line_per_step_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Terminal() as terminal:
        with terminal.step("Downloading m", 10, BYTES):
            terminal.advance(5)
        terminal.say("the first source is away")
    found = capsys.readouterr()
    assert found.err == "Downloading m\nthe first source is away\n"
    assert found.out == ""


def test_a_step_within_another_counts_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_screen(monkeypatch)
    with progress.Terminal() as terminal:
        with terminal.step("Measuring [b]", 12, "round"):
            terminal.advance(3)
            with terminal.step("Checking m", 4000, BYTES):
                terminal.advance(1000)
                first, second = shown(terminal, screen)
            assert first.startswith("Measuring [b] ")
            assert "3 of 12 rounds" in first
            assert second.startswith("  Checking m ")
            assert "1.0 kB of 4.0 kB" in second
            terminal.advance()
            (only,) = shown(terminal, screen)
            assert "4 of 12 rounds" in only
        terminal.say("a [word]")
        assert shown(terminal, screen) == ["a [word]"]
    assert screen.lines() == ["a [word]"]


def test_no_label_outlives_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_screen(monkeypatch)
    with progress.Terminal() as terminal:
        with suppress(KeyError), terminal.step("Outer"), terminal.step("Inner", 3, "text"):
            assert len(shown(terminal, screen)) == 2
            raise KeyError
        assert shown(terminal, screen) == []


def test_what_is_printed_meanwhile_has_the_terminal_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_screen(monkeypatch)
    with progress.Terminal() as terminal, terminal.step("Transcribing a.wav", 60, AUDIO):
        terminal.advance(7)
        with terminal.aside():
            assert screen.lines() == []
            console.say("It was the best of times.")
        first, second = shown(terminal, screen)
    assert first == "It was the best of times."
    assert second.endswith("0:07 of 1:00")
    assert screen.lines() == ["It was the best of times."]


def test_a_long_title_takes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_screen(monkeypatch)
    with progress.Terminal() as terminal, terminal.step("Checking " + 20 * "a long name ", 12, "text"):
        (line,) = shown(terminal, screen)
    assert line.startswith("Checking a long name")
    assert line.endswith(" 0 of 12 texts")
    assert len(line) <= COLUMNS


BAD_UNITS = ("0 of 1 bytes", "B/s", "bytes")


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (["bench", "smollm2-135m", "--draft", "off", "--tokens", "4", "--repeat", "1"], [" of 12 rounds"]),
        (["export", "smollm2-135m", "--to", "openvino"], ["Writing the tokenizer"]),
    ],
)
def test_commands_count_what_they_do(
    localspec: Localspec,
    terminal: Callable[..., Terminal],
    tmp_path: Path,
    arguments: Sequence[str],
    seen: Sequence[str],
) -> None:
    found = terminal(localspec, *arguments, folder=tmp_path)
    for text in seen:
        found.until(text)
    assert found.end() == 0, found.shown
    assert not any(unit in found.shown for unit in BAD_UNITS)
