"""Permission to call a tool: granted beforehand, or by the user when asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from localspec.errors import UnknownName
from localspec.tools import Access, Tool, ToolFailed

Reply = Literal["yes", "no", "always"]
Ask = Callable[[Tool, str], Reply]

KINDS = [kind for kind in get_args(Access) if kind != "none"]
HARMLESS = ("read",)  # allowed without asking: the user gave the folder to be read
EVERYTHING = [kind for kind in KINDS if kind != "test"]  # what `--yes` allows
CHANGES = ("write", "test")  # `test`: a test that the task does not speak of


class NotAllowed(ToolFailed):
    """A call that is not allowed."""


class Permission:
    """Allows calls by their kind of access, asks about the others, and remembers an `always` for a tool.

    An `always` covers one kind of access of the tool.

    Without `ask`, calls that are not allowed beforehand are refused.
    """

    def __init__(
        self,
        allowed: Collection[str] = HARMLESS,
        ask: Ask | None = None,
        show: Callable[[str], None] = lambda preview: None,
    ) -> None:
        """Raise UnknownName for a kind of access that does not exist.

        `show` is called with the preview of a change that needs no question.
        """
        for kind in allowed:
            if kind not in KINDS:
                raise UnknownName(f"Unknown access `{kind}`", kind, KINDS)
        self._allowed = {"none", *allowed}
        self._always: set[tuple[str, str]] = set()
        self._ask = ask
        self._show = show

    def check(self, tool: Tool, arguments: Mapping[str, Any]) -> None:
        """Raise NotAllowed for a call that is refused, ToolFailed for one that cannot work."""
        for access, preview in tool.needed(arguments):
            self._check(replace(tool, access=access), preview or format_whole_call(tool.name, arguments))

    def _check(self, tool: Tool, preview: str) -> None:
        if tool.access in self._allowed or (tool.name, tool.access) in self._always:
            if tool.access in CHANGES:
                self._show(preview)
            return
        if self._ask is None and tool.access == "test":
            raise NotAllowed(
                "This is a test, and the task does not say to change it", "Change the program that it tests"
            )
        if self._ask is None:
            raise NotAllowed(f"`{tool.name}` is not allowed, and there is no terminal to ask on")
        reply = self._ask(tool, preview)
        if reply == "no":
            raise NotAllowed(f"The user does not allow this `{tool.name}`", "Do it another way, or ask why")
        if reply == "always":
            self._always.add((tool.name, tool.access))


def format_whole_call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call as a line that is not cut off, for the user who allows it."""
    values = (f"{key}={value!r}" for key, value in arguments.items())
    return f"{name}({', '.join(values)})"
