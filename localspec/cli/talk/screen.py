"""Answers on a terminal: Markdown as it streams, each block drawn once it is whole."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Generator
from contextlib import closing
from typing import IO, TYPE_CHECKING, Protocol

from localspec.cli import console
from localspec.output.reasoning import ReasoningParser, Said

if TYPE_CHECKING:
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.syntax import Syntax

    from localspec.core.types import Step

TALLEST = 0.8  # of the screen: what is higher cannot be drawn anew, so that much is drawn at once
TOGETHER, APART = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show what is between at once
THEME = "ansi_dark"
DIM, PLAIN = "\x1b[2m", "\x1b[0m"

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_INNER_FENCE = re.compile(r"^\s*(`{3,}|~{3,})(.*)$")
_ITEM = re.compile(r"^ {0,3}([-*+]|\d{1,9}[.)])\s")
_HEADING = re.compile(r"^ {0,3}#{1,6}(\s|$)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Writer(Protocol):
    """Shows an answer as it streams."""

    thoughts: bool  # whether it shows what the model thinks

    def push(self, piece: str, *, thought: bool = False) -> None:
        """Show a piece of the answer, or of what the model thinks before it."""

    def end(self) -> None:
        """Show what is left, and leave the cursor on a line of its own."""


class PlainWriter:
    """Writes text as it comes; what the model thinks goes to stderr, dimmed there."""

    def __init__(
        self, out: IO[str], aside: IO[str] | None = None, *, safe: bool = False, dim: bool = False
    ) -> None:
        self._out = out
        self._aside = aside
        self.thoughts = aside is not None
        self._safe = safe
        self._dim, self._plain = (DIM, PLAIN) if dim else ("", "")
        self._thinking = False

    def push(self, piece: str, *, thought: bool = False) -> None:
        """Write a piece."""
        if thought:
            if self._aside is not None:
                self._aside.write(f"{self._dim}{printable(piece)}{self._plain}")
                self._aside.flush()
                self._thinking = True
            return
        self._stop_thinking()
        self._out.write(printable(piece) if self._safe else piece)
        self._out.flush()

    def end(self) -> None:
        """End the line."""
        self._stop_thinking()
        self._out.write("\n")
        self._out.flush()

    def _stop_thinking(self) -> None:
        if self._thinking and self._aside is not None:
            self._aside.write("\n\n")
            self._aside.flush()
        self._thinking = False


class MarkdownWriter:
    """Writes Markdown: a block appears word by word and is drawn once more, formatted, when it is whole.

    Nothing is drawn twice but that, so nothing flickers. Code and lists that outgrow the screen are drawn in
    parts, and what else does stays as it is.
    """

    def __init__(self, out: IO[str], *, thoughts: bool = True) -> None:
        self._out = out
        self.thoughts = thoughts
        self._thinking = False
        self._line = ""  # the line that is being written
        self._block = ""  # the whole lines of the block that is being written
        self._listed = False  # it holds a list, which blank lines do not end
        self._fence = ""  # what closes the code that is being written, in a list too
        self._lexer: str | None = None  # of code that is a block of its own
        self._shown = _Shown(out)
        self._spaced = True  # what was drawn last ends with a blank line

    def push(self, piece: str, *, thought: bool = False) -> None:
        """Show a piece."""
        piece = printable(piece)
        if thought:
            self._think(piece)
            return
        self._stop_thinking()
        while piece:
            part, newline, piece = piece.partition("\n")
            self._line += part
            self._shown.write(part + newline)
            if newline:
                self._end_line()
        self._out.flush()

    def end(self) -> None:
        """Draw what is left."""
        if self._line:
            self.push("\n")
        self._stop_thinking()
        self._draw()
        self._out.flush()

    def _think(self, piece: str) -> None:
        if self.thoughts:
            self._out.write(("" if self._thinking else DIM) + piece)
            self._thinking = True
            self._out.flush()

    def _stop_thinking(self) -> None:
        if self._thinking:
            self._out.write(f"{PLAIN}\n\n")
            self._thinking = False

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        if self._lexer is not None:
            self._end_code_line(line)
        elif self._listed and self._in_list(line):
            self._end_list_line(line)
        else:
            self._end_other_line(line)

    def _end_code_line(self, line: str) -> None:
        if _closes(line, self._fence):
            self._draw()
            self._lexer, self._fence = None, ""
            return
        self._block += line + "\n"
        if self._shown.tall:
            self._draw()

    def _in_list(self, line: str) -> bool:
        """Tell whether a line belongs to the list that is being written."""
        if self._fence or not line.strip() or _ITEM.match(line) or line.startswith(("  ", "\t")):
            return True
        lazy = not self._block.endswith("\n\n")
        return lazy and not _FENCE.match(line) and not _HEADING.match(line)

    def _end_list_line(self, line: str) -> None:
        if self._fence:
            self._fence = "" if _closes(line, self._fence) else self._fence
        elif fence := _INNER_FENCE.match(line):
            self._fence = fence[1]
        elif _ITEM.match(line) and self._shown.tall:
            self._block = self._block.rstrip("\n") + "\n"  # the list goes on: no blank line in it
            self._take_back(line)
            self._listed = True
        self._block += line + "\n"

    def _end_other_line(self, line: str) -> None:
        fence = _FENCE.match(line)
        if fence or self._listed or _HEADING.match(line):
            self._take_back(line)
        if fence:
            self._fence, self._lexer = fence[1], fence[2].strip().partition(" ")[0]
            return
        self._block += line + "\n"
        self._listed = bool(_ITEM.match(line))
        if not line.strip() or _HEADING.match(line):
            self._draw()

    def _take_back(self, line: str) -> None:
        """Draw what stands before a line that begins a new block, and show the line anew below it."""
        if self._block.strip():
            self._draw()
            self._shown.write(line + "\n")

    def _draw(self) -> None:
        """Draw the block in place of what is shown of it."""
        block, self._block, self._listed = self._block, "", False
        code = self._lexer is not None
        drawn = bool(block.strip()) or (code and bool(block))
        blank = not code and block.endswith("\n\n" if drawn else "\n") and (drawn or not self._spaced)
        self._spaced = blank or (self._spaced and not drawn)
        self._shown.replace(self._formatted(block) if drawn else "", blank)

    def _formatted(self, block: str) -> str:
        """Return whole lines of text as they are drawn, whole lines too."""
        drawing = _console(self._shown.width)
        with drawing.capture() as captured:
            drawing.print(_markdown(block) if self._lexer is None else _code(block, self._lexer))
        return captured.get().strip("\n") + "\n" if self._lexer is None else captured.get()


def _markdown(block: str) -> Markdown:
    from rich.markdown import Markdown

    return Markdown(block, code_theme=THEME)


def _code(block: str, lexer: str) -> Syntax:
    from rich.syntax import Syntax

    return Syntax(
        block.removesuffix("\n"), lexer or "text", theme=THEME, word_wrap=True, background_color="default"
    )


def _closes(line: str, fence: str) -> bool:
    """Tell whether a line closes the code that `fence` opened."""
    found = _INNER_FENCE.match(line)
    return bool(found) and line.strip().startswith(fence) and not line.strip().strip(fence[0])


class _Shown:
    """The rows that a block takes on the screen before it is drawn: broken here, so that they are known."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self.width, self.height = shutil.get_terminal_size()
        self.rows = 0
        self._column = 0

    @property
    def tall(self) -> bool:
        """Tell whether so much is shown that it should be drawn soon."""
        return self.rows > self.height * TALLEST

    def write(self, text: str) -> None:
        """Show text as it is, in lines of the screen's width."""
        from rich.cells import cell_len

        shown = []
        for one in text:
            size = 0 if one == "\n" else 4 - self._column % 4 if one == "\t" else cell_len(one)
            if one == "\n" or self._column + size > self.width:
                shown.append("\n")
                self.rows, self._column = self.rows + 1, 0
            if one != "\n":
                shown.append(" " * size if one == "\t" else one)
                self._column += size
        self._out.write("".join(shown))

    def replace(self, text: str, blank: bool) -> None:
        """Draw the lines of `text` in place of what is shown; a `blank` line may come after them."""
        size = shutil.get_terminal_size()
        same = (self.width, self.height) == tuple(size)
        back = f"\x1b[{self.rows}A" if self.rows else ""
        if same and self.rows < self.height:
            self._out.write(f"{TOGETHER}\r{back}\x1b[J{text}" + "\n" * blank + APART)
        elif self._column:  # the screen has another size now: rows are elsewhere, so all stays as it is
            self._out.write("\n")
        self.width, self.height = size
        self.rows = self._column = 0


def _console(width: int) -> Console:
    from rich.console import Console

    return Console(force_terminal=True, width=width, color_system="standard", legacy_windows=False)


def printable(text: str) -> str:
    """Return text without the control characters that act on a terminal."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def stream(
    steps: Generator[Step, None, None], out: Writer, *, thinking: ReasoningParser | None
) -> Generator[Step, None, None]:
    """Show an answer on `out` and yield its rounds; what `thinking` takes for a thought is shown as one.

    The answer is closed and ended however it comes out.
    """
    waiting = console.Waiting()
    try:
        waiting.show("Reading")
        with closing(steps):
            for last in steps:
                for said in thinking.push(last.text) if thinking else [Said(last.text)]:
                    if said.thought and not out.thoughts:
                        waiting.show("Thinking")
                        continue
                    waiting.clear()
                    out.push(said.text, thought=said.thought)
                yield last
    finally:
        waiting.clear()
        for said in thinking.end() if thinking else []:
            out.push(said.text, thought=said.thought)
        out.end()


def writer(out: IO[str], *, markdown: bool, thoughts: bool) -> Writer:
    """Return what shows answers on `out`."""
    if markdown:
        return MarkdownWriter(out, thoughts=thoughts)
    aside = sys.stderr if thoughts and sys.stderr.isatty() else None
    return PlainWriter(out, aside, safe=out.isatty(), dim=console.coloured())
