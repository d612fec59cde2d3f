"""Answers on a terminal: Markdown as it streams, each block drawn once it is whole."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Generator
from contextlib import closing
from typing import IO, TYPE_CHECKING, Protocol

from localspec.core.thinking import Said, Thinking

if TYPE_CHECKING:
    from rich.console import Console

    from localspec.core.contracts import Round

TALLEST = 0.8  # of the screen: what is higher cannot be drawn anew, so that much is drawn at once
TOGETHER, APART = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know it show what is between at once
DIM, PLAIN = "\x1b[2m", "\x1b[0m"

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_HEADING = re.compile(r"^ {0,3}#{1,6}(\s|$)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Writer(Protocol):
    """Shows an answer as it streams."""

    def push(self, piece: str, *, thought: bool = False) -> None:
        """Show a piece of the answer, or of what the model thinks before it."""

    def end(self) -> None:
        """Show what is left, and leave the cursor on a line of its own."""


class PlainWriter:
    """Writes text as it comes; what the model thinks goes to stderr, dimmed there."""

    def __init__(self, out: IO[str], aside: IO[str] | None = None, *, safe: bool = False) -> None:
        self._out = out
        self._aside = aside
        self._safe = safe

    def push(self, piece: str, *, thought: bool = False) -> None:
        """Write a piece."""
        stream = self._aside if thought else self._out
        if stream is not None:
            stream.write(printable(piece) if self._safe else piece)
            stream.flush()

    def end(self) -> None:
        """End the line."""
        self._out.write("\n")
        self._out.flush()


class MarkdownWriter:
    """Writes Markdown: a block appears word by word and is drawn once more, formatted, when it is whole.

    Nothing is drawn twice but that, so nothing flickers. A block that outgrows the screen is drawn in parts.
    """

    def __init__(self, out: IO[str], *, thoughts: bool = True) -> None:
        self._out = out
        self._thoughts = thoughts
        self._block = ""  # of the block that is being written, whole lines
        self._line = ""  # the line that is being written
        self._fence = ""  # what closes the code that is being written
        self._head = ""  # what began it
        self._shown = _Shown(out)
        self._thinking = False

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
        self._stop_thinking()
        self._block += self._line
        self._line = ""
        self._draw(closed=True)
        self._out.flush()

    def _think(self, piece: str) -> None:
        if self._thoughts:
            self._out.write(("" if self._thinking else DIM) + piece)
            self._thinking = True
            self._out.flush()

    def _stop_thinking(self) -> None:
        if self._thinking:
            self._out.write(f"{PLAIN}\n\n")
            self._thinking = False

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        fence = _FENCE.match(line)
        if self._fence:
            self._block += line + "\n"
            if fence and fence[1].startswith(self._fence) and not fence[2].strip():
                self._draw(closed=True)
            elif self._shown.rows > self._shown.height * TALLEST:
                self._draw(closed=False)
        elif fence:
            self._take_back(line)
            self._fence, self._head, self._block = fence[1], line + "\n", line + "\n"
        elif _HEADING.match(line):
            self._take_back(line)
            self._block = line + "\n"
            self._draw(closed=True)
        else:
            self._block += line + "\n"
            if not line.strip():
                self._draw(closed=True)

    def _take_back(self, line: str) -> None:
        """Draw what stands before a line that begins a new block, and show the line anew below it."""
        if self._block.strip():
            self._draw(closed=True)
            self._shown.write(line + "\n")

    def _draw(self, *, closed: bool) -> None:
        """Draw the block in place of what is shown of it; code that is not `closed` goes on below."""
        block, self._block = self._block, ""
        if self._fence and not closed:
            drawn = block + self._fence
            self._block = self._head
        else:
            drawn = block + ("" if not self._fence or block.rstrip().endswith(self._fence) else self._fence)
            self._fence = ""
        blank = closed and block.endswith("\n\n")
        self._shown.replace(self._formatted(drawn) if drawn.strip() else "", blank)

    def _formatted(self, block: str) -> str:
        from rich.markdown import Markdown

        console = _console(self._shown.width)
        with console.capture() as captured:
            console.print(Markdown(block, code_theme="ansi_dark"))
        return captured.get().strip("\n")


class _Shown:
    """The rows that a block takes on the screen before it is drawn: broken here, so that they are known."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self.width, self.height = shutil.get_terminal_size()
        self.rows = 0
        self._column = 0

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
        """Draw `text` in place of what is shown, and go on below it, after a `blank` line if so."""
        size = shutil.get_terminal_size()
        same = (self.width, self.height) == tuple(size)
        back = f"\x1b[{self.rows}A" if self.rows else ""
        if same and self.rows < self.height:
            self._out.write(f"{TOGETHER}\r{back}\x1b[J{text}" + ("\n" if text else "") + "\n" * blank + APART)
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
    rounds: Generator[Round, None, None], out: Writer, *, thinking: Thinking | None
) -> Generator[Round, None, None]:
    """Show an answer on `out` and yield its rounds; what `thinking` takes for a thought is shown as one.

    The answer is closed and ended however it comes out.
    """
    try:
        with closing(rounds):
            for last in rounds:
                for said in thinking.push(last.text) if thinking else [Said(last.text)]:
                    out.push(said.text, thought=said.thought)
                yield last
    finally:
        for said in thinking.end() if thinking else []:
            out.push(said.text, thought=said.thought)
        out.end()


def writer(out: IO[str], *, markdown: bool, thoughts: bool) -> Writer:
    """Return what shows answers on `out`."""
    if markdown:
        return MarkdownWriter(out, thoughts=thoughts)
    return PlainWriter(out, sys.stderr if thoughts else None, safe=out.isatty())
