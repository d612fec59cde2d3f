"""The tools that ship, and those that a user names."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.agent import files, shell, web
from localspec.agent.folder import Folder
from localspec.errors import UnknownName
from localspec.tools import Tool, imported


def shipped(folder: Folder) -> list[Tool]:
    """Return every tool that ships, kept to `folder`."""
    return [*files.tools(folder), *shell.tools(folder), *web.tools()]


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
