"""Who may do what: a call is allowed beforehand, or somebody is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

from localspec.errors import UnknownName
from localspec.tools import Access, Tool, ToolFailed

Word = Literal["yes", "no", "always"]
Ask = Callable[[Tool, str], Word]

KINDS = [kind for kind in get_args(Access) if kind != "none"]
HARMLESS = ("read",)  # what nobody is asked about: the folder was given to be read


class NotAllowed(ToolFailed):
    """A call that nobody allowed."""


class Permission:
    """Allows calls by their kind of access; asks about the others, and remembers an `always` of a tool.

    Without anybody to `ask`, what is not allowed beforehand is refused.
    """

    def __init__(self, allowed: Collection[str] = HARMLESS, ask: Ask | None = None) -> None:
        """Raise UnknownName for a kind of access that does not exist."""
        for kind in allowed:
            if kind not in KINDS:
                raise UnknownName(f"There is no access called `{kind}`", kind, KINDS)
        self._allowed = {"none", *allowed}
        self._always: set[str] = set()
        self._ask = ask

    def check(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Raise NotAllowed for a call that is refused, ToolFailed for one that could not work."""
        shown = tool.preview(**arguments) if tool.preview else ""
        if tool.access in self._allowed or tool.name in self._always:
            return
        if self._ask is None:
            raise NotAllowed(f"`{tool.name}` is not allowed here, and nobody is there to ask")
        word = self._ask(tool, shown or written(tool.name, arguments))
        if word == "no":
            raise NotAllowed(f"The user does not allow this `{tool.name}`", "Do it another way, or ask why")
        if word == "always":
            self._always.add(tool.name)


def written(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as a line, whole: who allows it must see it."""
    values = (f"{key}={value!r}" for key, value in arguments.items())
    return f"{name}({', '.join(values)})"
