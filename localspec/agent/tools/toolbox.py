"""The built-in tools, and functions of the user as tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from localspec.agent.tools import edits, files, shell, web
from localspec.agent.tools.folder import MAX_SCANNED, Folder
from localspec.agent.tools.text_files import content
from localspec.chat import fenced
from localspec.errors import UnknownName
from localspec.output.visible import visible
from localspec.tools import Tool, imported

MAX_OVERVIEW = 2_000  # characters
MAX_ATTACHED = 8_000  # bytes of a file that is put in front of a task


def built_in(folder: Folder) -> list[Tool]:
    """Return the built-in tools, confined to `folder`."""
    read_file, *others = files.tools(folder)  # in the order in which small models do best
    return [read_file, *edits.tools(folder), *others, *shell.tools(folder), *web.tools()]


def overview(folder: Folder) -> str:
    """Return a description of a folder for the model: the list of its files, unless that is long."""
    listing = visible(files.Files(folder).list_files())
    short = len(listing) <= MAX_OVERVIEW
    return f"The folder has:\n{listing}" if short else "The folder has many files: list_files lists them."


def briefed(folder: Folder, task: str, known: Sequence[Mapping[str, Any]] = ()) -> tuple[str, list[str]]:
    """Return the prompt of a task, and the names of the files in it.

    The prompt has the folder's overview, unless the `known` messages have it already, and the short text
    files that the task names, then the task. A model then needs fewer calls, and can copy the text that it
    edits. The tools come before all of this, so the prompt cache serves them for every folder.
    """
    listing = overview(folder)
    words = {word.rstrip(".") for word in re.findall(r"[\w./-]+", task)}
    parts = [] if any(listing in str(message["content"]) for message in known) else [listing]
    names = []
    for file in islice(folder.files(folder.root), MAX_SCANNED):
        name = folder.name(file)
        if name in words and (text := content(folder, file, MAX_ATTACHED)) is not None:
            parts.append(fenced(name, visible(text)))
            names.append(name)
    return "\n\n".join([*parts, task]), names


def chosen(folder: Folder, names: Sequence[str] | None) -> list[Tool]:
    """Return the tools of these names, where MODULE:FUNCTION is a function of the user.

    Without a name of a built-in tool, all built-in tools are included. Raises UnknownName, and BadValue for
    a function that cannot be a tool.
    """
    known = {tool.name: tool for tool in built_in(folder)}
    own = [imported(name) for name in names or () if ":" in name]
    named = [name for name in names or () if ":" not in name]
    for name in named:
        if name not in known:
            raise UnknownName(f"Unknown tool `{name}`", name, known)
    return [*(known[name] for name in named or known), *own]
