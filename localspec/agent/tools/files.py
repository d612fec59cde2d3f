"""Tools that read the files of a folder, and search in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Annotated

from localspec.agent.tools.folder import Folder
from localspec.agent.tools.text_files import count_lines, describe_size, lines_of, shortened, text_of
from localspec.tools import Tool, ToolFailed, tool

MAX_LINES = 400  # of one read
MAX_FILES = 200
SEARCH_TIMEOUT = 20.0  # seconds
MAX_MATCHES = 100
MAX_OTHERS = 10  # matching lines of other files that are told
MAX_MATCH_WIDTH = 300  # characters


def tools(folder: Folder) -> list[Tool]:
    """Return the tools that read the files of `folder`."""
    files = Files(folder)
    return [tool(made, access="read") for made in (files.read_file, files.list_files, files.search_files)]


class Files:
    """Reads text files in a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def read_file(
        self,
        path: Annotated[str, "file to read, relative to the folder"],
        first: Annotated[int, "first line, 1 for all of a file"] = 1,
    ) -> str:
        """Read a text file, from a line on."""
        lines = lines_of(text_of(self._folder, self._folder.existing(path), path))
        if first < 1:
            raise ToolFailed("`first` is a number from 1 on")
        part = lines[first - 1 : first - 1 + MAX_LINES]
        shown = shortened("".join(part))
        rest = len(lines) - (first - 1 + len(part))
        if not lines:
            return "(the file is empty)"
        if not part:
            raise ToolFailed(f"`{path}` has {count_lines(lines)}")
        return f"{shown}\n({rest} more lines: read from line {first + len(part)})" if rest > 0 else shown

    def list_files(self, path: Annotated[str, "folder to look in"] = ".") -> str:
        """List the files in the folder and below, with their sizes."""
        place = self._folder.place(path)
        if not place.exists():
            raise ToolFailed(f"There is no folder `{path}`")
        files = list(islice(self._folder.files(place), MAX_FILES + 1))
        lines = [
            f"{self._folder.name(file)} ({describe_size(self._folder, file)})" for file in files[:MAX_FILES]
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
        lines = matching_lines(self._folder, place, re.escape(text))
        if place != self._folder.root:
            others = self._elsewhere(place, re.escape(text))
            if not lines:
                lines = others and [f"No line of `{path}` has `{text}`, but there is:", *others]
            elif others:
                lines += [f"{count_lines(others)} of other files match too:", *others[:MAX_OTHERS]]
        if not lines and (others := matching_lines(self._folder, place, f"(?i){re.escape(text)}")):
            lines = [f"No line has `{text}`, but in other letter case there is:", *others]
        return "\n".join(lines) or f"No line has `{text}`"

    def _elsewhere(self, place: Path, pattern: str) -> list[str]:
        """Return the lines that match in files outside `place`."""
        inside = self._folder.name(place)
        lines = matching_lines(self._folder, self._folder.root, pattern)
        return [line for line in lines if not line.startswith((f"{inside}:", f"{inside}/", "("))]


def lines_with(folder: Folder, name: str) -> list[str]:
    """Return the lines of a folder that have a name as a whole, at most MAX_MATCHES."""
    return matching_lines(folder, folder.root, whole_word(name))


def whole_word(name: str) -> str:
    """Return a pattern for a name as a whole word, or for any other text as it is."""
    start = r"(?<!\w)" if re.match(r"\w", name) else ""
    return start + re.escape(name) + (r"(?!\w)" if re.search(r"\w$", name) else "")


def matching_lines(folder: Folder, place: Path, pattern: str) -> list[str]:
    """Return the lines at or below a place that `pattern` matches, at most MAX_MATCHES."""
    lines = list(islice(_matches(folder, place, re.compile(pattern)), MAX_MATCHES + 1))
    if len(lines) > MAX_MATCHES:
        lines[MAX_MATCHES] = f"(more than {MAX_MATCHES} lines: look in one folder, or for a longer text)"
    return lines


def _matches(folder: Folder, place: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    end = monotonic() + SEARCH_TIMEOUT
    for file in folder.files(place):
        if monotonic() > end:
            yield f"(stopped after {SEARCH_TIMEOUT:g} seconds: look in one folder)"
            return
        with suppress(ToolFailed):  # binary files
            for number, line in enumerate(lines_of(text_of(folder, file, file.name)), 1):
                if pattern.search(line):
                    yield f"{folder.name(file)}:{number}: {line.strip()[:MAX_MATCH_WIDTH]}"
