"""Tools that change the files of a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated

from localspec.agent.tools import syntax
from localspec.agent.tools.files import SEARCH_TIMEOUT, lines_with, matching_lines, whole_word
from localspec.agent.tools.folder import Folder
from localspec.agent.tools.text_files import (
    append_lines,
    content,
    count_lines,
    diff,
    lines_of,
    text_of,
    text_size,
    write_text,
)
from localspec.tools import SUBSTRING_OF, Access, Properties, Tool, ToolFailed, tool

REPLACE = "replace_in_files"
MAX_QUOTED = 3_000  # characters of a file that the error of a failed edit quotes
MAX_FILES = 200
MAX_CONSTRAINED = 60_000  # bytes of all files: edits of more are not constrained by a grammar

_NAME = re.compile(r"(\b[^\W\d]\w*)")


def tools(folder: Folder) -> list[Tool]:
    """Return the tools that change the files of `folder`."""
    edits = Edits(folder)
    return [
        replace(tool(edits.write_file, access="write"), permissions=edits.permissions(edits.preview_write)),
        replace(
            tool(edits.edit_file, access="write", argument_constraints=edits.edit_constraints),
            permissions=edits.permissions(edits.preview_edit),
        ),
        tool(edits.replace_in_files, name=REPLACE, access="write", preview=edits.preview_replace),
    ]


class Edits:
    """Writes and changes text files in a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def write_file(
        self,
        path: Annotated[str, "file to write, relative to the folder"],
        text: Annotated[str, "all of the file's text"],
    ) -> str:
        """Write a text file, new or in place of an old one."""
        place = self._folder.writable(path)
        meant = syntax.unescaped(path, text)
        write_text(self._folder, place, meant)
        return self._after_change(place, f"`{path}` has {count_lines(lines_of(meant))} now", meant != text)

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
        others = lines_with(self._folder, name) if name else []
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

    def preview_write(self, path: str, text: str) -> str:
        """Return the diff of a write."""
        place = self._folder.writable(path)
        before = text_of(self._folder, place, path) if place.is_file() else ""
        return diff(before, syntax.unescaped(path, text), self._folder.name(place))

    def preview_edit(self, path: str, old: str, new: str) -> str:
        """Return the diff of an edit."""
        return diff(*self._edited(path, old, new), self._folder.name(self._folder.writable(path)))

    def permissions(self, preview: Callable[..., str]) -> Callable[..., Iterator[tuple[Access, str]]]:
        """Return what yields the permission of a change, with its preview: tests have one of their own."""

        def needed(path: str, **arguments: str) -> Iterator[tuple[Access, str]]:
            shown = preview(path=path, **arguments)
            if self._folder.is_protected(path):
                yield "test", f"A test, which the task does not speak of changing:\n{shown}"
            else:
                yield "write", shown

        return needed

    def preview_replace(self, old: str, new: str) -> str:
        """Return the diffs of a replacement."""
        changed = self._replaced(old, new)
        return "".join(diff(*texts, self._folder.name(place)) for place, texts in changed.items())

    def edit_constraints(self) -> list[Properties]:
        """Return the arguments that fit the current files; none if the files are many or long.

        Small models fail at edits above all because they do not quote the old text exactly. Protected tests
        are not among the files.
        """
        constraints: list[Properties] = []
        room = MAX_CONSTRAINED
        for number, file in enumerate(self._folder.files(self._folder.root)):
            if number == MAX_FILES:
                return []
            size = text_size(self._folder, file)
            if size is None:
                continue
            room -= size
            if room < 0:
                return []
            name, text = self._folder.name(file), content(self._folder, file)
            if text is None or self._folder.is_protected(name):
                continue
            part = {SUBSTRING_OF: text.replace("\r\n", "\n")}
            path = {"const": name}
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
        pattern, found, end = re.compile(whole_word(old)), {}, monotonic() + SEARCH_TIMEOUT
        for file in self._folder.files(self._folder.root):
            if monotonic() > end:
                raise ToolFailed("The folder has too many files for this", "Use edit_file")
            text = content(self._folder, file)
            if text is not None and pattern.search(text):
                place = self._folder.writable(self._folder.name(file))
                found[place] = (text, pattern.sub(lambda match: new, text))
        if not found:
            others = matching_lines(self._folder, self._folder.root, re.escape(old))
            hint = "\n".join(["There is:", *others]) if others else "See the files with list_files"
            raise ToolFailed(f"No file has `{old}`", hint)
        return found

    def _edited(self, path: str, old: str, new: str) -> tuple[str, str]:
        place = self._folder.existing(path)
        self._folder.writable(path)
        before = text_of(self._folder, place, path)
        if "\r\n" in before and "\r" not in old:  # models write \n only
            old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
        if not old:
            meant = syntax.unescaped(path, new, lambda text: append_lines(before, text))
            return before, self._parsing(path, before, append_lines(before, meant))
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


def renamed(old: str, new: str) -> str:
    """Return the one name that an edit replaces everywhere, "" if it changes more than that."""
    before, after = _NAME.split(old), _NAME.split(new)
    pairs = {(was, now) for was, now in zip(before, after, strict=False) if was != now}
    name = next(iter(pairs))[0] if len(pairs) == 1 and len(before) == len(after) else ""
    return name if _NAME.fullmatch(name) and name not in after else ""


def _as_given(before: str, after: str, new: str) -> bool:
    """Return whether an edit wrote `new` as it was given, and not with its line ends unescaped."""
    return before == after or new.replace("\r\n", "\n") in after.replace("\r\n", "\n")


def _quote(text: str, path: str) -> str:
    """Return the text of a short file as a hint, or a hint to read it."""
    return f"It has:\n{text}" if len(text) <= MAX_QUOTED else f"Read `{path}` first"
