"""Markdown on a terminal: the same screen for any pieces, and no control characters."""

from __future__ import annotations

import io
import os
import random
import re
from collections.abc import Callable
from types import SimpleNamespace

import pyte
import pytest
from rich.console import Console

from localspec.cli import console
from localspec.cli.talk.markdown import MarkdownWriter
from localspec.cli.talk.screen import PlainWriter, prompt_progress

TEXT = """# A title

Some *words* with `code` in them, and enough of them that a narrow terminal has to break the line twice.

1. **First**: a point

   ```python
   print("inside")
   ```

2. Second: a point
   that goes on

- a bullet
- another

```python
def f(x):
    return "```"
```
| a | b |
|---|---|
| 1 | 2 |

日本語の文章も、端末の幅に合わせて折り返される。
The end"""

SIZES = [(80, 24), (24, 60), (13, 8)]


class Screen:
    """An emulated terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int = 80, rows: int = 24) -> None:
        self._patch = monkeypatch
        self.out = io.StringIO()
        self.history = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.Stream(self.history)
        self.resize(columns, rows)
        self._read = 0

    def resize(self, columns: int, rows: int) -> None:
        self._patch.setenv("COLUMNS", str(columns))
        self._patch.setenv("LINES", str(rows))
        self.history.resize(rows, columns)

    def catch_up(self) -> None:
        """Show the new output."""
        written = self.out.getvalue()
        self._stream.feed(written[self._read :].replace("\n", "\r\n"))
        self._read = len(written)

    def lines(self) -> list[str]:
        """Return all lines, those in the scrollback first."""
        self.catch_up()
        width = range(self.history.columns)
        gone = ["".join(line[at].data for at in width) for line in self.history.history.top]
        return [line.rstrip() for line in [*gone, *self.history.display]]

    def text(self) -> str:
        return "\n".join(self.lines()).strip("\n")


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Screen]:
    return lambda *size: Screen(monkeypatch, *size)


def written(found: Screen, pieces: list[str]) -> Screen:
    writer = MarkdownWriter(found.out)
    for piece in pieces:
        writer.push(piece)
        found.catch_up()
    writer.end()
    found.catch_up()
    return found


def cut(text: str, seed: int) -> list[str]:
    """Return a text in small pieces."""
    draw, pieces = random.Random(seed), []
    while text:
        size = draw.choice((1, 2, 3, 5, 8, 40))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@pytest.mark.parametrize("size", SIZES)
def test_any_pieces_give_the_same_screen(screen: Callable[..., Screen], size: tuple[int, int]) -> None:
    whole = written(screen(*size), [TEXT]).lines()
    assert written(screen(*size), list(TEXT)).lines() == whole
    for seed in range(8):
        assert written(screen(*size), cut(TEXT, seed)).lines() == whole


def test_markdown_is_drawn(screen: Callable[..., Screen]) -> None:
    shown = written(screen(80, 60), list(TEXT)).text()
    for mark in ("**", "# A", "`code`", "```python", "|---|"):
        assert mark not in shown
    for words in ("A title", "Some words with code", 'return "```"', "端末の幅", "The end"):
        assert words in shown
    assert re.search(r"^ *1 First: a point$", shown, re.M)
    assert re.search(r"^ *2 Second: a point that goes on$", shown, re.M)
    assert shown.count("print(") == 1


def test_code_is_coloured_once_it_is_complete(screen: Callable[..., Screen]) -> None:
    found = screen()
    writer = MarkdownWriter(found.out)
    writer.push("```python\nimport os\n")
    before = found.out.getvalue()
    assert "\x1b[" not in before
    writer.push("```\n")
    assert re.search(r"\x1b\[[\d;]+mimport", found.out.getvalue()[len(before) :])
    assert found.text() == "import os"


@pytest.mark.parametrize("end", ["", "\n```", "\n```\n\nAfter it\n"])
def test_code_that_is_longer_than_the_screen_keeps_each_line(screen: Callable[..., Screen], end: str) -> None:
    code = [f"line_{number} = {number}" if number % 7 else "" for number in range(1, 100)]
    text = "Before it:\n```python\n" + "\n".join(code) + end
    shown = written(screen(40, 10), cut(text, 1)).text()
    assert shown == "\n".join(["Before it:", *code, *(["", "After it"] if "After" in end else [])])


@pytest.mark.parametrize("between", ["\n", "\n\n"])
def test_a_list_that_is_longer_than_the_screen_keeps_each_item(
    screen: Callable[..., Screen], between: str
) -> None:
    text = between.join(f"{number}. item **{number}**" for number in range(1, 60))
    shown = written(screen(40, 10), cut(text, 2)).text()
    assert re.findall(r"item (\d+)", shown) == [str(number) for number in range(1, 60)]
    assert len(shown.splitlines()) == 59
    assert "**" not in shown


def test_a_paragraph_that_is_longer_than_the_screen_stays(screen: Callable[..., Screen]) -> None:
    text = " ".join(f"word{number}" for number in range(200))
    shown = written(screen(20, 6), cut(text, 3)).text()
    assert shown.replace("\n", "").replace(" ", "") == text.replace(" ", "")


def test_a_resize_within_a_block_loses_nothing(screen: Callable[..., Screen]) -> None:
    found = screen(60, 20)
    writer = MarkdownWriter(found.out)
    writer.push("Before.\n\nSome **bold** words")
    found.catch_up()
    found.resize(30, 20)
    writer.push(" go on.\n\nAnd *after* it.\n")
    writer.end()
    shown = found.text()
    assert "Some **bold** words" in shown  # rows have moved, so it stays unformatted
    assert "And after it." in shown
    assert "Before." in shown


def test_text_above_an_answer_is_never_changed(screen: Callable[..., Screen]) -> None:
    found = screen(40, 12)
    found.out.write("> a question\n")
    shown = written(found, cut(TEXT, 4)).lines()
    assert shown[0] == "> a question"


def test_no_control_characters_get_through(screen: Callable[..., Screen]) -> None:
    evil = "a\x1b[2Jb\x07\x9b31mc\rd\x00e\x1b]0;title\x07f\x7f\n\n```\n\x1b[31m\n```\n"
    found = screen()
    writer = MarkdownWriter(found.out)
    writer.push("kept\n\n")
    for piece in evil:
        writer.push(piece)
    writer.end()
    drawn = re.sub(r"\x1b\[(\d*[AJ]|\?2026[hl]|[\d;]*m)|\r", "", found.out.getvalue())
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", drawn)
    assert found.text().startswith("kept\n\na?[2Jb??31mc?d?e?]0;title?f?".replace("?", "\ufffd"))
    plain = io.StringIO()
    PlainWriter(plain, safe=True).push(evil)
    assert "\x1b" not in plain.getvalue()


def test_reasoning_is_dimmed_or_hidden(screen: Callable[..., Screen]) -> None:
    for thoughts in (True, False):
        found = screen()
        writer = MarkdownWriter(found.out, thoughts=thoughts)
        writer.push("hm", thought=True)
        writer.push("m\x1b[2J", thought=True)
        writer.push("So: **yes**")
        writer.end()
        assert found.text() == ("hmm\ufffd[2J\n\n" if thoughts else "") + "So: yes"
        assert ("\x1b[2mhm" in found.out.getvalue()) is thoughts


def test_without_markdown_reasoning_goes_to_stderr(screen: Callable[..., Screen]) -> None:
    out, aside = io.StringIO(), io.StringIO()
    writer = PlainWriter(out, aside, dim=True)
    for piece in ("h", "m\x1b[2J"):
        writer.push(piece, thought=True)
    writer.push("**yes**")
    writer.end()
    assert out.getvalue() == "**yes**\n"
    assert aside.getvalue() == "\x1b[2mh\x1b[0m\x1b[2mm\ufffd[2J\x1b[0m\n\n"
    hidden = PlainWriter(out, None)
    hidden.push("hm", thought=True)
    hidden.end()
    assert out.getvalue() == "**yes**\n\n"


def test_text_is_erased_only_when_it_is_replaced(screen: Callable[..., Screen]) -> None:
    found = screen()
    writer = MarkdownWriter(found.out)
    for piece in cut(TEXT, 5):
        at = len(found.out.getvalue())
        writer.push(piece)
        for update in found.out.getvalue()[at:].split("\x1b[?2026h")[1:]:  # erased and drawn at once
            assert "\x1b[?2026l" in update
    assert found.out.getvalue().count("\x1b[J") < TEXT.count("\n")


def test_any_screen_size_works(screen: Callable[..., Screen]) -> None:
    for size in ((1, 1), (2, 2), (3, 1)):
        written(screen(*size), cut("# a\n\n日本 b\n\n```\ncode\n```\n- x\n", 6))
    assert os.environ["COLUMNS"] == "3"


def test_a_long_prompt_is_read_by_count() -> None:
    target = SimpleNamespace(chunk=256, chunks=0)
    answer = SimpleNamespace(prompt_tokens=4100)
    told = prompt_progress(SimpleNamespace(target=target), answer)  # type: ignore[arg-type]
    waiting, out = console.Waiting(), io.StringIO()
    waiting.show(told)
    for target.chunks in (0, 4, 17):
        Console(file=out, width=60).print(waiting)
    assert [line.strip() for line in out.getvalue().splitlines()] == [
        "Reading 0 of 4,100 tokens",
        "Reading 1,024 of 4,100 tokens",
        "Reading 4,100 of 4,100 tokens",
    ]
    answer.prompt_tokens = 256
    short = prompt_progress(SimpleNamespace(target=target), answer)  # type: ignore[arg-type]
    assert short() == "Reading"


def test_a_status_line_shows_text_as_it_is() -> None:
    waiting, out = console.Waiting(), io.StringIO()
    waiting.show("[red]\x1b[2Jx[/]")
    Console(file=out, width=60).print(waiting)
    assert out.getvalue().strip() == "[red]\ufffd[2Jx[/]"
