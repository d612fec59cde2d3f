"""The tools that ship, and those that a user names."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.agent import files, shell, web
from localspec.agent.folder import Folder
from localspec.errors import UnknownName
from localspec.tools import Tool, imported

OVERVIEW = 2000  # characters


def shipped(folder: Folder) -> list[Tool]:
    """Return every tool that ships, kept to `folder`."""
    return [*files.tools(folder), *shell.tools(folder), *web.tools()]


def overview(folder: Folder) -> str:
    """Return what a model is told of a folder before it begins: its files, unless there are very many."""
    found = files.Files(folder).list_files()
    few = len(found) <= OVERVIEW
    return f"The folder has:\n{found}" if few else "The folder has many files: list_files lists them."


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
