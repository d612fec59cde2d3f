"""The common parts of the bodies of requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from localspec.errors import BadValue, printable
from localspec.runtime.choice import AUTO
from localspec.serve.generation import ToolChoice


class Drafting(BaseModel):
    """How one answer is drafted, and whether it tells how: an extra of localspec."""

    model_config = ConfigDict(extra="forbid", strict=True)

    draft: str = AUTO
    draft_length: str | None = None
    stats: bool = False


class Strict(BaseModel):
    """A body, or a part of one, without other fields than its own."""

    model_config = ConfigDict(extra="forbid")


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a client set."""
    return {name: value for name, value in values.items() if value is not None}


def arguments_of(name: str, text: str) -> dict[str, Any]:
    """Return the arguments of a call of `name`; raises BadValue for a text that is no JSON object."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadValue(f"The arguments of a call of `{printable(name)}` are no JSON object", None)
    return found


def offered(
    tools: list[dict[str, Any]], choice: ToolChoice, name: str | None = None
) -> tuple[list[dict[str, Any]], ToolChoice]:
    """Return the tools that may be called, and whether one must be: the one called `name`, if it is given.

    Raises BadValue for a tool that must be called and is not in `tools`.
    """
    if name is not None:
        tools = [tool for tool in tools if tool["function"]["name"] == name]
        if not tools:
            raise BadValue(f"`tool_choice` names `{printable(name)}`, which is not in `tools`", None)
    if choice == "required" and not tools:
        raise BadValue("`tool_choice` is `required`, and `tools` is empty", None)
    return tools, choice
