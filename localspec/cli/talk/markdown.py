"""Markdown on a terminal as it streams: each block is drawn once it is complete."""

from __future__ import annotations

import re
import shutil
from typing import IO, TYPE_CHECKING

from localspec.cli import console
from localspec.output.visible import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.syntax import Syntax

MAX_HEIGHT = 0.7  # of the screen; a taller block is drawn early, before it scrolls out of reach
BAR = 1  # the last row, where the statistics of a running answer may be
SYNC_BEGIN, SYNC_END = "\x1b[?2026h", "\x1b[?2026l"  # synchronized output: terminals show it at once
THEME = "ansi_dark"

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
_INNER_FENCE = re.compile(r"^\s*(`{3,}|~{3,})(.*)$")
_ITEM = re.compile(r"^ {0,3}([-*+]|\d{1,9}[.)])\s")
_HEADING = re.compile(r"^ {0,3}#{1,6}(\s|$)")


class MarkdownWriter:
    """Writes Markdown: a block appears word by word and is redrawn, formatted, when it is complete.

    Nothing else is redrawn, so nothing flickers. Code and lists taller than the screen are drawn in parts;
    other tall blocks stay unformatted.
    """

    def __init__(self, out: IO[str], *, thoughts: bool = True) -> None:
        self._out = out
        self.thoughts = thoughts
        self._thinking = False
        self._last = ""  # the character before the next piece
        self._line = ""  # the incomplete last line
        self._block = ""  # the complete lines of the current block
        self._in_list_block = False  # blank lines do not end a list
        self._fence = ""  # closes the current code, in a list too
        self._lexer: str | None = None  # of a code block outside a list
        self._raw = _RawText(out)
        self._spaced = True  # the last drawn block ends with a blank line

    def push(self, piece: str, *, thought: bool = False) -> None:
        """Show a piece."""
        last, self._last = self._last, piece[-1:] or self._last
        piece = visible(piece, last)
        if thought:
            self._think(piece)
            return
        self._stop_thinking()
        while piece:
            part, newline, piece = piece.partition("\n")
            self._line += part
            self._raw.write(part + newline)
            if newline:
                self._end_line()
        self._out.flush()

    def end(self) -> None:
        """Draw the rest."""
        if self._line:
            self.push("\n")
        self._stop_thinking()
        self._draw()
        self._out.flush()

    def _think(self, piece: str) -> None:
        if self.thoughts:
            self._out.write(("" if self._thinking else console.DIM) + piece)
            self._thinking = True
            self._out.flush()

    def _stop_thinking(self) -> None:
        if self._thinking:
            self._out.write(f"{console.PLAIN}\n\n")
            self._thinking = False

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        if self._lexer is not None:
            self._end_code_line(line)
        elif self._in_list_block and self._in_list(line):
            self._end_list_line(line)
        else:
            self._end_other_line(line)

    def _end_code_line(self, line: str) -> None:
        if _closes(line, self._fence):
            self._draw()
            self._lexer, self._fence = None, ""
            return
        self._block += line + "\n"
        if self._raw.tall:
            self._draw()

    def _in_list(self, line: str) -> bool:
        """Return whether a line belongs to the current list."""
        if self._fence or not line.strip() or _ITEM.match(line) or line.startswith(("  ", "\t")):
            return True
        lazy = not self._block.endswith("\n\n")
        return lazy and not _FENCE.match(line) and not _HEADING.match(line)

    def _end_list_line(self, line: str) -> None:
        if self._fence:
            self._fence = "" if _closes(line, self._fence) else self._fence
        elif fence := _INNER_FENCE.match(line):
            self._fence = fence[1]
        elif _ITEM.match(line) and self._raw.tall:
            self._block = self._block.rstrip("\n") + "\n"  # a list continues without a blank line
            self._start_block(line)
            self._in_list_block = True
        self._block += line + "\n"

    def _end_other_line(self, line: str) -> None:
        fence = _FENCE.match(line)
        if fence or self._in_list_block or _HEADING.match(line):
            self._start_block(line)
        if fence:
            self._fence, self._lexer = fence[1], fence[2].strip().partition(" ")[0]
            return
        self._block += line + "\n"
        self._in_list_block = bool(_ITEM.match(line))
        if not line.strip() or _HEADING.match(line):
            self._draw()

    def _start_block(self, line: str) -> None:
        """Draw the block before a line that starts a new one, and show the line again below it."""
        if self._block.strip():
            self._draw()
            self._raw.write(line + "\n")

    def _draw(self) -> None:
        """Replace the raw text of the block by its drawing."""
        block, self._block, self._in_list_block = self._block, "", False
        code = self._lexer is not None
        drawn = bool(block.strip()) or (code and bool(block))
        blank = not code and block.endswith("\n\n" if drawn else "\n") and (drawn or not self._spaced)
        self._spaced = blank or (self._spaced and not drawn)
        self._raw.replace(self._formatted(block) if drawn else "", blank)

    def _formatted(self, block: str) -> str:
        """Return the complete lines of a block as complete formatted lines."""
        drawing = _console(self._raw.width)
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
    """Return whether a line closes the code that `fence` opened."""
    match = _INNER_FENCE.match(line)
    return bool(match) and line.strip().startswith(fence) and not line.strip().strip(fence[0])


class _RawText:
    """Raw text on the screen; it wraps lines itself, so that the number of rows is known."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self.width, self.height = _size()
        self.rows = 0
        self._column = 0

    @property
    def tall(self) -> bool:
        """Return whether the text is so tall that it should be drawn soon."""
        return self.rows > self.height * MAX_HEIGHT

    def write(self, text: str) -> None:
        """Show text unformatted, wrapped to the width of the screen."""
        from rich.cells import cell_len

        shown = []
        for character in text:
            newline, tab = character == "\n", character == "\t"
            size = 0 if newline else 4 - self._column % 4 if tab else cell_len(character)
            if newline or self._column + size > self.width:
                shown.append("\n")
                self.rows, self._column = self.rows + 1, 0
            if not newline:
                shown.append(" " * size if tab else character)
                self._column += size
        self._out.write("".join(shown))

    def replace(self, text: str, blank: bool) -> None:
        """Replace the raw text by the lines of `text`, and a `blank` line after them if wanted."""
        size = _size()
        same_size = (self.width, self.height) == size
        back = f"\x1b[{self.rows}A" if self.rows else ""
        if same_size and self.rows < self.height:
            self._out.write(f"{SYNC_BEGIN}\r{back}\x1b[J{text}" + "\n" * blank + SYNC_END)
        elif self._column:  # after a resize the rows have moved, so the raw text stays
            self._out.write("\n")
        self.width, self.height = size
        self.rows = self._column = 0


def _size() -> tuple[int, int]:
    """Return the columns and the rows of the screen that an answer may fill."""
    columns, rows = shutil.get_terminal_size()
    return columns, rows - BAR


def _console(width: int) -> Console:
    from rich.console import Console

    return Console(force_terminal=True, width=width, color_system="standard", legacy_windows=False)
