"""Tools that read and write the files of a folder."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Annotated

from localspec.agent.tools import handles, syntax
from localspec.agent.tools.folder import Folder
from localspec.tools import SUBSTRING_OF, Access, Properties, Tool, ToolFailed, tool

REPLACE = "replace_in_files"
MAX_OUTPUT = 16_000  # characters of one result
MAX_QUOTED = 3_000  # characters of a file that the error of a failed edit quotes
MAX_LINES = 400  # of one read
MAX_FILES = 200
SEARCH_TIMEOUT = 20.0  # seconds
MAX_MATCHES = 100
MAX_NAMED = 5  # files that match as well
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
        replace(tool(files.write_file, access="write"), permissions=files.permissions(files.preview_write)),
        replace(
            tool(files.edit_file, access="write", argument_constraints=files.edit_constraints),
            permissions=files.permissions(files.preview_edit),
        ),
        tool(files.replace_in_files, name=REPLACE, access="write", preview=files.preview_replace),
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
        place = self._folder.writable(path)
        meant = syntax.unescaped(path, text)
        write_text(self._folder, place, meant)
        return self._after_change(place, f"`{path}` has {_count_lines(_lines_of(meant))} now", meant != text)

    def edit_file(
        self,
        path: Annotated[str, "file to change, relative to the folder"],
        old: Annotated[str, "text that is in the file once, exactly; empty for the file's end"],
        new: Annotated[str, "text in its place"],
    ) -> str:
        """Change a file: replace a text in it by another one, or add text at its end."""
        before, after = self._edited(path, old, new)
        place = self._folder.writable(path)
        write_text(self._folder, place, after)
        name = renamed(old, new)
        others = self.lines_with(name) if name else []
        lines = [f"`{path}` is changed", *([f"`{name}` is still there:", *others] if others else [])]
        return self._after_change(place, "\n".join(lines), not _as_given(before, after, new))

    def replace_in_files(
        self,
        old: Annotated[str, "name or text to replace everywhere"],
        new: Annotated[str, "name or text in its place"],
    ) -> str:
        """Rename: replace a name or a text in all files."""
        changed = self._replaced(old, new)
        for place, (_, after) in changed.items():
            write_text(self._folder, place, after)
        names = ", ".join(f"`{self._folder.name(place)}`" for place in changed)
        faults = list(filter(None, (self._new_fault(place) for place in changed)))
        return self._result(f"`{old}` is `{new}` now in {names}", faults)

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
        if place != self._folder.root:
            others = self._elsewhere(place, re.escape(text))
            if not lines:
                lines = others and [f"No line of `{path}` has `{text}`, but there is:", *others]
            elif others:
                files = dict.fromkeys(line.partition(":")[0] for line in others)
                names = ", ".join(list(files)[:MAX_NAMED])
                lines.append(f"({_count_lines(others)} of other files match too, in {names})")
        if not lines and (others := self._matching_lines(place, f"(?i){re.escape(text)}")):
            lines = [f"No line has `{text}`, but in other letter case there is:", *others]
        return "\n".join(lines) or f"No line has `{text}`"

    def lines_with(self, name: str) -> list[str]:
        """Return the lines of the folder that have a name as a whole, at most MAX_MATCHES."""
        return self._matching_lines(self._folder.root, _whole(name))

    def preview_write(self, path: str, text: str) -> str:
        """Return the diff of a write."""
        place = self._folder.writable(path)
        before = _text(self._folder, place, path) if place.is_file() else ""
        return diff(before, syntax.unescaped(path, text), self._folder.name(place))

    def preview_edit(self, path: str, old: str, new: str) -> str:
        """Return the diff of an edit."""
        return diff(*self._edited(path, old, new), self._folder.name(self._folder.writable(path)))

    def permissions(self, preview: Callable[..., str]) -> Callable[..., Iterator[tuple[Access, str]]]:
        """Return what yields the permission of a change, with its preview: tests have one of their own."""

        def needed(path: str, **arguments: str) -> Iterator[tuple[Access, str]]:
            shown = preview(path=path, **arguments)
            yield "test" if self._folder.is_protected(path) else "write", shown

        return needed

    def preview_replace(self, old: str, new: str) -> str:
        """Return the diffs of a replacement."""
        changed = self._replaced(old, new)
        return "".join(diff(*texts, self._folder.name(place)) for place, texts in changed.items())

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

    def _after_change(self, place: Path, result: str, unescaped: bool) -> str:
        r"""Return the result of a change; raises ToolFailed if the file, which is written, does not parse."""
        note = f"{result} (each `\\n` in it became the end of a line)" if unescaped else result
        return self._result(note, list(filter(None, [self._new_fault(place)])))

    def _result(self, result: str, faults: list[str]) -> str:
        if faults:
            raise ToolFailed("\n".join([result, *faults]), "Correct it")
        return result

    def _new_fault(self, place: Path) -> str | None:
        """Return why a file does not parse."""
        name = self._folder.name(place)
        fault = syntax.fault(name, content(self._folder, place) or "")
        return f"`{name}` does not parse: {fault}" if fault else None

    def _replaced(self, old: str, new: str) -> dict[Path, tuple[str, str]]:
        """Return the files that have a text, each with its text before and after it is replaced."""
        if not old or old == new:
            raise ToolFailed("`old` is empty" if not old else "`old` and `new` are the same")
        pattern, found, end = re.compile(_whole(old)), {}, monotonic() + SEARCH_TIMEOUT
        for file in self._folder.files(self._folder.root):
            if monotonic() > end:
                raise ToolFailed("The folder has too many files for this", "Use edit_file")
            text = content(self._folder, file)
            if text is not None and pattern.search(text):
                place = self._folder.writable(self._folder.name(file))
                found[place] = (text, pattern.sub(lambda match: new, text))
        if not found:
            others = self._matching_lines(self._folder.root, re.escape(old))
            hint = "\n".join(["There is:", *others]) if others else "See the files with list_files"
            raise ToolFailed(f"No file has `{old}`", hint)
        return found

    def _elsewhere(self, place: Path, pattern: str) -> list[str]:
        """Return the lines that match in files outside `place`."""
        inside = self._folder.name(place)
        lines = self._matching_lines(self._folder.root, pattern)
        return [line for line in lines if not line.startswith((f"{inside}:", f"{inside}/", "("))]

    def _edited(self, path: str, old: str, new: str) -> tuple[str, str]:
        place = self._folder.existing(path)
        self._folder.writable(path)
        before = _text(self._folder, place, path)
        if "\r\n" in before and "\r" not in old:  # models write \n only
            old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
        if not old:
            meant = syntax.unescaped(path, new, lambda text: _append(before, text))
            return before, self._parsing(path, before, _append(before, meant))
        count = before.count(old)
        if count == 0:
            raise ToolFailed(f"`{path}` does not have the text `{old}`", _quote(before, path))
        if count > 1:
            hint = f"Give more of the lines around it. {_quote(before, path)}"
            raise ToolFailed(f"`{path}` has the text `{old}` {count} times", hint)
        if old == new:
            raise ToolFailed(
                "`old` and `new` are the same", f"Give the changed text in `new`. {_quote(before, path)}"
            )
        meant = syntax.unescaped(path, new, lambda text: before.replace(old, text))
        return before, self._parsing(path, before, before.replace(old, meant))

    def _parsing(self, path: str, before: str, after: str) -> str:
        """Return an edited text; raises ToolFailed if the edit makes it one that does not parse."""
        fault = syntax.fault(path, after)
        if fault and not syntax.fault(path, before):
            hint = f"Give all lines that change in `old`, and all of them in `new`. {_quote(before, path)}"
            raise ToolFailed(f"Not changed, for `{path}` would not parse: {fault}", hint)
        return after

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


def _whole(name: str) -> str:
    """Return a pattern for a name as a whole word, or for any other text as it is."""
    start = r"(?<!\w)" if re.match(r"\w", name) else ""
    return start + re.escape(name) + (r"(?!\w)" if re.search(r"\w$", name) else "")


def _as_given(before: str, after: str, new: str) -> bool:
    """Return whether an edit wrote `new` as it was given, and not with its line ends unescaped."""
    return before == after or new.replace("\r\n", "\n") in after.replace("\r\n", "\n")


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
