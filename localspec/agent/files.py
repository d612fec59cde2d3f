"""Tools for files in a folder."""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Annotated

from localspec.agent.folder import Folder
from localspec.tools import PART, Properties, Tool, ToolFailed, tool

MOST = 16_000  # characters that a tool tells at once
SHORT = 3_000  # characters of a file that is shown where an edit does not fit it
LINES = 400
FILES = 200
SECONDS = 20.0  # that a search may take
NO_END = "\\ No newline at end of file"
FOUND = 100
LINE = 300
EDITED = 60_000  # bytes of all files to whose texts edits are held
START = 4096  # bytes by which a file is known to be binary
COUNTED = 1_000_000  # bytes of a file whose lines are counted
LARGEST = 20_000_000  # bytes of a file that is read
_NAME = re.compile(r"(\b[^\W\d]\w*)")


def tools(folder: Folder) -> list[Tool]:
    """Return the tools that read and write the files of `folder`."""
    files = Files(folder)
    return [
        tool(files.read_file, access="read"),
        tool(files.write_file, access="write", preview=files.writing),
        tool(files.edit_file, access="write", preview=files.editing, argument_constraints=files.edits),
        tool(files.list_files, access="read"),
        tool(files.search_files, access="read"),
    ]


class Files:
    """Reads and writes text in a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def read_file(
        self,
        path: Annotated[str, "file to read, relative to the folder"],
        first: Annotated[int, "first line, 1 for all of a file"] = 1,
    ) -> str:
        """Read a text file, from a line on."""
        lines = _split(_text(self._folder.existing(path), path))
        if first < 1:
            raise ToolFailed("`first` is a number from 1 on")
        part = lines[first - 1 : first - 1 + LINES]
        told = shortened("".join(part))
        left = len(lines) - (first - 1 + len(part))
        if not lines:
            return "(the file is empty)"
        if not part:
            raise ToolFailed(f"`{path}` has {_lines(lines)}")
        return f"{told}\n({left} more lines: read from line {first + len(part)})" if left > 0 else told

    def write_file(
        self,
        path: Annotated[str, "file to write, relative to the folder"],
        text: Annotated[str, "all of the file's text"],
    ) -> str:
        """Write a text file, new or in place of an old one."""
        written(self._folder.writable(path), text)
        return f"`{path}` has {_lines(_split(text))} now"

    def edit_file(
        self,
        path: Annotated[str, "file to change, relative to the folder"],
        old: Annotated[str, "text that is in the file once, exactly; empty for the file's end"],
        new: Annotated[str, "text in its place"],
    ) -> str:
        """Change a file: replace a text in it by another one, or add text at its end."""
        _, after = self._edited(path, old, new)
        written(self._folder.writable(path), after)
        name = renamed(old, new)
        left = self._found(self._folder.root, rf"\b{re.escape(name)}\b") if name else []
        return "\n".join([f"`{path}` is changed", *([f"`{name}` is still there:", *left] if left else [])])

    def list_files(self, path: Annotated[str, "folder to look in"] = ".") -> str:
        """List the files in the folder and below, with their sizes."""
        place = self._folder.place(path)
        if not place.exists():
            raise ToolFailed(f"There is no folder `{path}`")
        found = list(islice(self._folder.files(place), FILES + 1))
        lines = [f"{self._folder.name(file)} ({_size(file)})" for file in found[:FILES]]
        more = f"(more than {FILES} files: look in one folder)" if len(found) > FILES else ""
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
        found = self._found(place, re.escape(text))
        if not found and place != self._folder.root:
            found = self._found(self._folder.root, re.escape(text))
            found = found and [f"No line of `{path}` has `{text}`, but there is:", *found]
        return "\n".join(found) or f"No line has `{text}`"

    def writing(self, path: str, text: str) -> str:
        """Return what write_file would change."""
        place = self._folder.writable(path)
        before = _text(place, path) if place.is_file() else ""
        return difference(before, text, self._folder.name(place))

    def editing(self, path: str, old: str, new: str) -> str:
        """Return what edit_file would change."""
        return difference(*self._edited(path, old, new), self._folder.name(self._folder.writable(path)))

    def edits(self) -> list[Properties]:
        """Return which edits fit the files as they are; nothing where those are many or long.

        A model that cannot quote exactly fails here more than anywhere else.
        """
        found: list[Properties] = []
        room = EDITED
        for number, file in enumerate(self._folder.files(self._folder.root)):
            if number == FILES:
                return []
            size = _text_size(file)
            if size is None:
                continue
            room -= size
            if room < 0:
                return []
            if (text := content(file)) is None:
                continue
            part = {PART: text.replace("\r\n", "\n")}
            found.append({"path": {"const": self._folder.name(file)}, "old": part, "new": {"type": "string"}})
        return found

    def _edited(self, path: str, old: str, new: str) -> tuple[str, str]:
        place = self._folder.existing(path)
        self._folder.writable(path)
        before = _text(place, path)
        if "\r\n" in before and "\r" not in old:  # a model ends its lines in one way
            old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
        if not old:
            return before, _added(before, new)
        count = before.count(old)
        if count == 0:
            raise ToolFailed(f"`{path}` does not have the text `{old}`", _shown(before, path))
        if count > 1:
            hint = f"Give more of the lines around it. {_shown(before, path)}"
            raise ToolFailed(f"`{path}` has the text `{old}` {count} times", hint)
        if old == new:
            raise ToolFailed("`old` and `new` are the same")
        return before, before.replace(old, new)

    def _found(self, place: Path, pattern: str) -> list[str]:
        """Return the lines that `pattern` matches, FOUND at most."""
        found = list(islice(self._matches(place, re.compile(pattern), monotonic() + SECONDS), FOUND + 1))
        if len(found) > FOUND:
            found[FOUND] = f"(more than {FOUND} lines: look in one folder, or for a longer text)"
        return found

    def _matches(self, place: Path, pattern: re.Pattern[str], end: float) -> Iterator[str]:
        for file in self._folder.files(place):
            if monotonic() > end:
                yield f"(stopped after {SECONDS:g} seconds: look in one folder)"
                return
            with suppress(ToolFailed):  # files that are no text have no lines
                for number, line in enumerate(_split(_text(file, file.name)), 1):
                    if pattern.search(line):
                        yield f"{self._folder.name(file)}:{number}: {line.strip()[:LINE]}"


def content(file: Path) -> str | None:
    """Return the text of a file, None where it is none."""
    with suppress(ToolFailed):
        return _text(file, file.name)
    return None


def _text_size(file: Path) -> int | None:
    """Return the bytes of a file; None of one that is binary by its start, or cannot be read."""
    with suppress(OSError), file.open("rb") as source:
        return None if b"\0" in source.read(START) else os.fstat(source.fileno()).st_size
    return None


def renamed(old: str, new: str) -> str:
    """Return the one name in which `old` and `new` differ, as it was; "" where they differ in more."""
    before, after = _NAME.split(old), _NAME.split(new)
    pairs = {(one, other) for one, other in zip(before, after, strict=False) if one != other}
    name = next(iter(pairs))[0] if len(pairs) == 1 and len(before) == len(after) else ""
    return name if _NAME.fullmatch(name) and name not in after else ""


def shortened(text: str) -> str:
    """Return at most MOST characters of a text, from its start and its end, and say what is missing."""
    if len(text) <= MOST:
        return text
    half = MOST // 2
    return f"{text[:half]}\n(... {len(text) - 2 * half:,} characters left out ...)\n{text[-half:]}"


def difference(before: str, after: str, path: str) -> str:
    """Return what changes in a file, as a unified diff."""
    lines = difflib.unified_diff(_split(before), _split(after), path, path, n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_END}\n" for line in lines)


def written(place: Path, text: str) -> None:
    """Write a file, whole or not at all, and keep who may do what with it."""
    partial = place.with_name(f".{place.name}.partial-{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, "utf-8", newline="")
        if place.exists():
            partial.chmod(place.stat().st_mode & 0o7777)
        partial.replace(place)
    except (OSError, UnicodeEncodeError) as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolFailed(f"`{place.name}` cannot be written: {reason}") from None
    except BaseException:  # Ctrl-C
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _text(file: Path, shown: str) -> str:
    try:
        if file.stat().st_size > LARGEST:
            raise ToolFailed(f"`{shown}` is too large to read: {file.stat().st_size:,} bytes")
        with file.open(encoding="utf-8", newline="") as source:
            return source.read()
    except UnicodeDecodeError:
        raise ToolFailed(f"`{shown}` is no text: {file.stat().st_size:,} bytes of something else") from None
    except OSError as error:
        raise ToolFailed(f"`{shown}` cannot be read: {error.strerror}") from None


def _shown(text: str, path: str) -> str:
    """Return a short file's text, for a model that did not know it; of a longer one, how to know it."""
    return f"It has:\n{text}" if len(text) <= SHORT else f"Read `{path}` first"


def _added(text: str, new: str) -> str:
    """Return a text with lines added at its end."""
    end = "\r\n" if "\r\n" in text else "\n"
    return text + ("" if not text or text.endswith("\n") else end) + new + ("" if new.endswith("\n") else end)


def _size(file: Path) -> str:
    """Return how long a file is: its lines, where it is a text that is quickly read, and its bytes."""
    try:
        size = file.stat().st_size
    except OSError:
        return "gone"
    if size <= COUNTED:
        with suppress(ToolFailed):
            return f"{_lines(_split(_text(file, file.name)))}, {size:,} bytes"
    return f"{size:,} bytes"


def _split(text: str) -> list[str]:
    """Return the lines as editors count them; `str.splitlines` ends one at a form feed too."""
    return list(io.StringIO(text, newline="\n"))


def _lines(lines: list[str]) -> str:
    return "1 line" if len(lines) == 1 else f"{len(lines)} lines"
