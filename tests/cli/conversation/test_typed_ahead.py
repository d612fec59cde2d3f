"""Keys typed ahead, long texts in the input line, and the status bar, without a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyPress

from localspec.cli.talk.saved import folded
from localspec.cli.talk.terminal import keyboard
from localspec.cli.talk.terminal.folds import Folds
from localspec.cli.talk.terminal.line import waiting

LONG = "\n".join("abcdefghijk")


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("", []),
        ("\r\n\r", []),
        ("hi\r", ["hi"]),
        ("\rone\rtwo\r", ["one\ntwo"]),
        ("a\tb", ["a\tb"]),
        ("ab\x7fc", ["ab", "c-h", "c"]),
        ("a\x04\x07\x12\x1b[Ab", ["ab"]),
        ("a\x1b[200~b\rc\x1b[201~\rd\r", ["a", "b\rc", "\nd"]),
        ("\x1b[200~b\r\x1b[201~\r", ["b\r"]),
    ],
)
def test_keys_that_were_typed_ahead_write_and_edit_but_do_not_act(typed: str, keys: list[str]) -> None:
    presses: list[KeyPress] = []
    parser = Vt100Parser(presses.append)
    parser.feed_and_flush(typed)
    found = waiting(presses)
    assert [
        press.data if press.key == "<bracketed-paste>" else str(press.key.value) for press in found
    ] == keys


@pytest.mark.parametrize(
    ("typed", "cut"),
    [
        (b"", False),
        (b"a\r", False),
        (b"\x1b[200~a", True),
        (b"\x1b[200~a\x1b[201", True),
        (b"\x1b[200~a\x1b[201~", False),
        (b"\x1b[200~a\x1b[201~\x1b[200~", True),
        (b"a\x1b", True),
        (b"a\x1b[1;", True),
        (b"\x1b[A", False),
        ("aß€😀".encode(), False),
        ("aß€😀".encode()[:-1], True),
        ("aß€".encode()[:-2], True),
    ],
)
def test_what_is_cut_is_seen(typed: bytes, cut: bool) -> None:
    assert keyboard.is_cut(typed) is cut


@pytest.mark.parametrize(
    ("typed", "count"),
    [
        ("", 0),
        ("\r \r", 0),
        ("\x1b[A\x1bOB", 0),
        ("a", 1),
        ("\x1b[200~a\rb\x1b[201~\r", 2),
        ("a\r\nb\n\rc", 4),
    ],
)
def test_lines_are_counted_without_keys_that_write_nothing(typed: str, count: int) -> None:
    assert keyboard.lines(typed) == count


def test_a_text_of_over_ten_lines_is_folded() -> None:
    folds = Folds()
    short = LONG[2:]
    assert folds.fold(short) == short
    one, other = folds.fold(LONG), folds.fold(LONG.upper())
    assert len({one, other}) == 2
    assert len(one) == len(other) == 1
    assert folds.fold(LONG) == one
    assert folds.label(one) == "[pasted 11 lines]"
    assert folds.label("a") is None
    assert folds.unfold(f"a{one}b{other}") == f"a{LONG}b{LONG.upper()}"
    assert folds.recalled(f"a\n{LONG}\nb") == f"a\n{one}\nb"
    assert folds.label(folds.recalled(LONG.replace("a", "z"))) == "[pasted 11 lines]"
    assert folds.unfold(folds.fold(one)) == one  # pasted text with such a character stays as it is


def test_a_long_message_is_shown_without_its_rest() -> None:
    assert folded("a\nb\n") == "a\nb"
    assert folded("\n".join("abcdefg")) == "a\nb\nc\nd\ne\nf\ng"
    assert folded(LONG) == "a\nb\nc\nd\ne\nf\n[5 more lines]"
    assert folded("x" * 500) == "x" * 400 + " ..."


def test_a_keyboard_without_a_terminal_does_nothing(tmp_path: Path) -> None:
    with keyboard.Keyboard(wanted=True) as found, found.lent():
        assert found.take() == ""
        found.give_back("a")
        assert found.take() == "a"
    found.drop()
