"""Tools that read and write the files of a folder."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Annotated

from localspec.agent.tools import handles
from localspec.agent.tools.folder import Folder
from localspec.tools import SUBSTRING_OF, Properties, Tool, ToolFailed, tool

MAX_OUTPUT = 16_000  # characters of one result
MAX_QUOTED = 3_000  # characters of a file that the error of a failed edit quotes
MAX_LINES = 400  # of one read
MAX_FILES = 200
SEARCH_TIMEOUT = 20.0  # seconds
MAX_MATCHES = 100
MAX_MATCH_WIDTH = 300  # characters
MAX_CONSTRAINED = 60_000  # bytes of all files: edits of more are not constrained by a grammar
SNIFFED = 4096  # bytes in which a NUL tells a binary file
MAX_COUNTED = 1_000_000  # bytes of a file whose lines are counted
MAX_READ = 20_000_000  # bytes of a file
NO_NEWLINE = "\\ No newline at end of file"

_NAME = re.compile(r"(\b[^\W\d]\w*)")


def tools(folder: Folder) -> list[Tool]:
    """Return the tools that read and write the files of `folder`."""
    files = Files(folder)
    return [
        tool(files.read_file, access="read"),
        tool(files.write_file, access="write", preview=files.preview_write),
        tool(
            files.edit_file,
            access="write",
            preview=files.preview_edit,
            argument_constraints=files.edit_constraints,
        ),
        tool(files.list_files, access="read"),
        tool(files.search_files, access="read"),
    ]


class Files:
    """Reads and writes text files in a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def read_file(
        self,
        path: Annotated[str, "file to read, relative to the folder"],
        first: Annotated[int, "first line, 1 for all of a file"] = 1,
    ) -> str:
        """Read a text file, from a line on."""
        lines = _lines_of(_text(self._folder, self._folder.existing(path), path))
        if first < 1:
            raise ToolFailed("`first` is a number from 1 on")
        part = lines[first - 1 : first - 1 + MAX_LINES]
        shown = shortened("".join(part))
        rest = len(lines) - (first - 1 + len(part))
        if not lines:
            return "(the file is empty)"
        if not part:
            raise ToolFailed(f"`{path}` has {_count_lines(lines)}")
        return f"{shown}\n({rest} more lines: read from line {first + len(part)})" if rest > 0 else shown

    def write_file(
        self,
        path: Annotated[str, "file to write, relative to the folder"],
        text: Annotated[str, "all of the file's text"],
    ) -> str:
        """Write a text file, new or in place of an old one."""
        write_text(self._folder, self._folder.writable(path), text)
        return f"`{path}` has {_count_lines(_lines_of(text))} now"

    def edit_file(
        self,
        path: Annotated[str, "file to change, relative to the folder"],
        old: Annotated[str, "text that is in the file once, exactly; empty for the file's end"],
        new: Annotated[str, "text in its place"],
    ) -> str:
        """Change a file: replace a text in it by another one, or add text at its end."""
        _, after = self._edited(path, old, new)
        write_text(self._folder, self._folder.writable(path), after)
        name = renamed(old, new)
        others = self._matching_lines(self._folder.root, rf"\b{re.escape(name)}\b") if name else []
        return "\n".join(
            [f"`{path}` is changed", *([f"`{name}` is still there:", *others] if others else [])]
        )

    def list_files(self, path: Annotated[str, "folder to look in"] = ".") -> str:
        """List the files in the folder and below, with their sizes."""
        place = self._folder.place(path)
        if not place.exists():
            raise ToolFailed(f"There is no folder `{path}`")
        files = list(islice(self._folder.files(place), MAX_FILES + 1))
        lines = [
            f"{self._folder.name(file)} ({_describe_size(self._folder, file)})" for file in files[:MAX_FILES]
        ]
        more = f"(more than {MAX_FILES} files: look in one folder)" if len(files) > MAX_FILES else ""
        return "\n".join([*lines, more]).strip() or "(no files)"

    def search_files(
        self,
        text: Annotated[str, "text to look for, as it is"],
        path: Annotated[str, "file or folder to look in"] = ".",
    ) -> str:
        """Find the lines that hold a text, in all files."""
        if not text:
            raise ToolFailed("`text` is empty")
        place = self._folder.place(path)
        if not place.exists():
            raise ToolFailed(f"There is no file or folder `{path}`")
        lines = self._matching_lines(place, re.escape(text))
        if not lines and place != self._folder.root:
            lines = self._matching_lines(self._folder.root, re.escape(text))
            lines = lines and [f"No line of `{path}` has `{text}`, but there is:", *lines]
        return "\n".join(lines) or f"No line has `{text}`"

    def preview_write(self, path: str, text: str) -> str:
        """Return the diff of a write."""
        place = self._folder.writable(path)
        before = _text(self._folder, place, path) if place.is_file() else ""
        return diff(before, text, self._folder.name(place))

    def preview_edit(self, path: str, old: str, new: str) -> str:
        """Return the diff of an edit."""
        return diff(*self._edited(path, old, new), self._folder.name(self._folder.writable(path)))

    def edit_constraints(self) -> list[Properties]:
        """Return the arguments that fit the current files; none if the files are many or long.

        Small models fail at edits above all because they do not quote the old text exactly.
        """
        constraints: list[Properties] = []
        room = MAX_CONSTRAINED
        for number, file in enumerate(self._folder.files(self._folder.root)):
            if number == MAX_FILES:
                return []
            size = _text_size(self._folder, file)
            if size is None:
                continue
            room -= size
            if room < 0:
                return []
            if (text := content(self._folder, file)) is None:
                continue
            part = {SUBSTRING_OF: text.replace("\r\n", "\n")}
            path = {"const": self._folder.name(file)}
            constraints.append({"path": path, "old": part, "new": {"type": "string"}})
        return constraints

    def _edited(self, path: str, old: str, new: str) -> tuple[str, str]:
        place = self._folder.existing(path)
        self._folder.writable(path)
        before = _text(self._folder, place, path)
        if "\r\n" in before and "\r" not in old:  # models write \n only
            old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
        if not old:
            return before, _append(before, new)
        count = before.count(old)
        if count == 0:
            raise ToolFailed(f"`{path}` does not have the text `{old}`", _quote(before, path))
        if count > 1:
            hint = f"Give more of the lines around it. {_quote(before, path)}"
            raise ToolFailed(f"`{path}` has the text `{old}` {count} times", hint)
        if old == new:
            raise ToolFailed("`old` and `new` are the same")
        return before, before.replace(old, new)

    def _matching_lines(self, place: Path, pattern: str) -> list[str]:
        """Return the lines that `pattern` matches, at most MAX_MATCHES."""
        matches = self._matches(place, re.compile(pattern), monotonic() + SEARCH_TIMEOUT)
        lines = list(islice(matches, MAX_MATCHES + 1))
        if len(lines) > MAX_MATCHES:
            lines[MAX_MATCHES] = f"(more than {MAX_MATCHES} lines: look in one folder, or for a longer text)"
        return lines

    def _matches(self, place: Path, pattern: re.Pattern[str], end: float) -> Iterator[str]:
        for file in self._folder.files(place):
            if monotonic() > end:
                yield f"(stopped after {SEARCH_TIMEOUT:g} seconds: look in one folder)"
                return
            with suppress(ToolFailed):  # binary files
                for number, line in enumerate(_lines_of(_text(self._folder, file, file.name)), 1):
                    if pattern.search(line):
                        yield f"{self._folder.name(file)}:{number}: {line.strip()[:MAX_MATCH_WIDTH]}"


def content(folder: Folder, file: Path, limit: int = MAX_READ) -> str | None:
    """Return the text of a file, None if it is not text or has more than `limit` bytes."""
    with suppress(ToolFailed):
        return _text(folder, file, file.name, limit)
    return None


def _text_size(folder: Folder, file: Path) -> int | None:
    """Return the size of a file in bytes, None if it looks binary or cannot be read."""
    with suppress(OSError):
        start, size = handles.read_bytes(folder.root, file, SNIFFED)
        return None if b"\0" in start else size
    return None


def renamed(old: str, new: str) -> str:
    """Return the one name that an edit replaces everywhere, "" if it changes more than that."""
    before, after = _NAME.split(old), _NAME.split(new)
    pairs = {(was, now) for was, now in zip(before, after, strict=False) if was != now}
    name = next(iter(pairs))[0] if len(pairs) == 1 and len(before) == len(after) else ""
    return name if _NAME.fullmatch(name) and name not in after else ""


def shortened(text: str) -> str:
    """Return the start and the end of a text longer than MAX_OUTPUT, with a note on what is left out."""
    if len(text) <= MAX_OUTPUT:
        return text
    half = MAX_OUTPUT // 2
    return f"{text[:half]}\n(... {len(text) - 2 * half:,} characters left out ...)\n{text[-half:]}"


def diff(before: str, after: str, path: str) -> str:
    """Return the unified diff of a file."""
    lines = difflib.unified_diff(_lines_of(before), _lines_of(after), path, path, n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}\n" for line in lines)


def write_text(folder: Folder, place: Path, text: str) -> None:
    """Write a file of a folder atomically, and keep its permissions; raises ToolFailed."""
    try:
        folder.changes.write(place, text.encode())
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolFailed(f"`{place.name}` cannot be written: {reason}") from None


def _text(folder: Folder, file: Path, shown: str, limit: int = MAX_READ) -> str:
    try:
        data, size = handles.read_bytes(folder.root, file, limit + 1)
        if size > limit:
            raise ToolFailed(f"`{shown}` is too large to read: {size:,} bytes")
        return data.decode()
    except UnicodeDecodeError:
        raise ToolFailed(f"`{shown}` is not text: {size:,} bytes of something else") from None
    except OSError as error:
        raise ToolFailed(f"`{shown}` cannot be read: {error.strerror}") from None


def _quote(text: str, path: str) -> str:
    """Return the text of a short file as a hint, or a hint to read it."""
    return f"It has:\n{text}" if len(text) <= MAX_QUOTED else f"Read `{path}` first"


def _append(text: str, new: str) -> str:
    """Return a text with lines added at its end."""
    end = "\r\n" if "\r\n" in text else "\n"
    return text + ("" if not text or text.endswith("\n") else end) + new + ("" if new.endswith("\n") else end)


def _describe_size(folder: Folder, file: Path) -> str:
    """Return the lines of a text file, unless it is large, and the bytes of any file."""
    try:
        size = file.stat().st_size
    except OSError:
        return "gone"
    if size <= MAX_COUNTED:
        with suppress(ToolFailed):
            return f"{_count_lines(_lines_of(_text(folder, file, file.name)))}, {size:,} bytes"
    return f"{size:,} bytes"


def _lines_of(text: str) -> list[str]:
    """Return the lines as editors count them: unlike `str.splitlines`, only a newline ends one."""
    return list(io.StringIO(text, newline="\n"))


def _count_lines(lines: list[str]) -> str:
    return "1 line" if len(lines) == 1 else f"{len(lines)} lines"
