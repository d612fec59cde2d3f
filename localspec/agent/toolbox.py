"""The tools that ship, and those that a user names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from localspec.agent import files, shell, web
from localspec.agent.folder import LOOKED_AT, Folder
from localspec.chat import fenced
from localspec.errors import UnknownName
from localspec.tools import Tool, imported

OVERVIEW = 2_000  # characters
BRIEF = 8_000  # bytes of a file that is put before a task


def shipped(folder: Folder) -> list[Tool]:
    """Return every tool that ships, kept to `folder`."""
    return [*files.tools(folder), *shell.tools(folder), *web.tools()]


def overview(folder: Folder) -> str:
    """Return what a model is told of a folder before it begins: its files, unless there are very many."""
    found = files.Files(folder).list_files()
    few = len(found) <= OVERVIEW
    return f"The folder has:\n{found}" if few else "The folder has many files: list_files lists them."


def briefed(folder: Folder, task: str, known: Sequence[Mapping[str, Any]] = ()) -> tuple[str, list[str]]:
    """Return a task behind what is in the folder and the short text files that it names, and their names.

    A model need not ask for what it will need, and its edits are copies of what it has read. What the `known`
    messages say of the folder is not said again. All of it stands behind the tools, so that those are the
    same for every folder and need not be read anew.
    """
    there = overview(folder)
    words = {word.rstrip(".") for word in re.findall(r"[\w./-]+", task)}
    parts = [] if any(there in str(one["content"]) for one in known) else [there]
    names = []
    for file in islice(folder.files(folder.root), LOOKED_AT):
        name = folder.name(file)
        if name in words and file.stat().st_size <= BRIEF and (text := files.content(file)) is not None:
            parts.append(fenced(name, text))
            names.append(name)
    return "\n\n".join([*parts, task]), names


def chosen(folder: Folder, names: Sequence[str] | None) -> list[Tool]:
    """Return the tools of these names, or all that ship; MODULE:FUNCTION is a function of the user's.

    Functions alone come beside all that ship. Raises UnknownName, and BadValue for what is no tool.
    """
    there = {tool.name: tool for tool in shipped(folder)}
    own = [imported(name) for name in names or () if ":" in name]
    named = [name for name in names or () if ":" not in name]
    for name in named:
        if name not in there:
            raise UnknownName(f"There is no tool called `{name}`", name, there)
    return [*(there[name] for name in named or there), *own]
