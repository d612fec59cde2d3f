"""A Python function as a tool: its schema from the signature, its words from the docstring."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any, Literal

from localspec.errors import BadValue, LocalspecError, UnknownName, suggestion

WAYS, PART = "x-ways", "x-part-of"  # in schemas for a grammar: the calls that can be right, a part of a text
Access = Literal["none", "read", "write", "run", "fetch"]
Properties = Mapping[str, Mapping[str, Any]]  # the schema of each argument

_ARGUMENTS = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$")
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SECTION = re.compile(r"^\S.*:\s*$")


class ToolFailed(LocalspecError):
    """A tool was called wrongly or did not work: the model is told, and goes on."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a model may call.

    `parameters` is the JSON schema of its arguments; `run` takes them by name and returns what the model is
    told. `access` is what it does to the world, for whoever must allow it, and `preview` says in words, a
    diff or a command what a call would do. `ways` returns the arguments that can be right at the moment, as
    schemas of each, in which PART is a text that an argument is a part of; nothing where any can be.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    run: Callable[..., Any]
    access: Access = "none"
    preview: Callable[..., str] | None = None
    argument_constraints: Callable[[], Sequence[Properties]] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as chat templates and other programs know it."""
        return self._schema(self.parameters)

    @property
    def schema_now(self) -> dict[str, Any]:
        """The tool as a grammar should know it: with the `ways` in which it can be called at the moment."""
        argument_constraints = self.argument_constraints() if self.argument_constraints else []
        held = [{**self.parameters, "properties": one, "required": list(one)} for one in argument_constraints]
        return self._schema({**self.parameters, WAYS: held} if held else self.parameters)

    def _schema(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ToolFailed for arguments that it does not have, or does not get."""
        known = self.parameters.get("properties", {})
        for name in arguments:
            if name not in known and self.parameters.get("additionalProperties") is False:
                raise ToolFailed(f"`{self.name}` has no argument `{name}`", suggestion(name, known))
        for name in self.parameters.get("required", ()):
            if name not in arguments:
                raise ToolFailed(f"`{self.name}` needs `{name}`", f"It takes {', '.join(known)}")


def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    access: Access = "none",
    preview: Callable[..., str] | None = None,
    argument_constraints: Callable[[], Sequence[Properties]] | None = None,
) -> Tool:
    """Return `function` as a tool; raises BadValue for one whose arguments no schema can describe.

    Every argument needs a type. What the docstring says before its arguments is the description; an argument
    is described in an `Args:` section, or by a text in `Annotated[TYPE, "..."]`.
    """
    called = name or str(getattr(function, "__name__", type(function).__name__))
    summary, told = _docstring(inspect.getdoc(function) or "")
    if not summary:
        raise BadValue(f"`{called}` has no docstring, so a model cannot know what it is for", "Write one")
    properties, types = {}, _types(function, called)
    for parameter, hint in types.items():
        properties[parameter] = _schema_of(hint, f"{called}({parameter})")
        words = told.get(parameter) or next((text for text in _notes(hint) if isinstance(text, str)), None)
        if words:
            properties[parameter]["description"] = words
    signature = inspect.signature(function).parameters
    required = [one for one in types if signature[one].default is inspect.Parameter.empty]
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }

    def run(**arguments: Any) -> Any:
        found = function(**_converted(arguments, types, called))
        return asyncio.run(found) if inspect.iscoroutine(found) else found

    return Tool(called, summary, parameters, run, access, preview, argument_constraints)


def imported(spec: str) -> Tool:
    """Return the function that MODULE:FUNCTION names as a tool; raises BadValue, UnknownName."""
    place, _, name = spec.partition(":")
    if os.getcwd() not in sys.path:  # a program that was installed does not look here
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(place)
    except (ImportError, ValueError) as error:
        raise BadValue(
            f"`{place}` cannot be imported: {error}",
            "Give MODULE:FUNCTION, with MODULE in this folder or on PYTHONPATH",
        ) from None
    except Exception as error:  # foreign code
        raise BadValue(
            f"`{place}` cannot be imported: {type(error).__name__}: {error}", f"Try `python -m {place}`"
        ) from None
    found = getattr(module, name, None)
    if not inspect.isroutine(found):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UnknownName(f"`{place}` has no function `{name}`", name, names)
    made = tool(found, access="run")

    def run(**arguments: Any) -> Any:
        with redirect_stdout(sys.stderr):  # what it prints is no data of ours
            return made.run(**arguments)

    return replace(made, run=run)


def _types(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise BadValue(f"The types of `{name}` cannot be read: {error}", "Import what they name") from None
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise BadValue(
                f"`{name}` cannot be a tool: `{parameter.name}` is not given by name", "Name its arguments"
            )
        if parameter.name not in hints:
            raise BadValue(f"`{parameter.name}` of `{name}` has no type", "Write `argument: str` or such")
        found[parameter.name] = hints[parameter.name]
    return found


def _schema_of(hint: Any, name: str) -> dict[str, Any]:
    import msgspec

    try:
        found, parts = msgspec.json.schema_components([hint], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise BadValue(
            f"`{name}` has a type that JSON cannot hold: {error}", "Use str, int, list ..."
        ) from None
    schema = dict(found[0])
    if parts:
        raise BadValue(f"`{name}` has a type of several fields", "Use str, int, float, bool, list or dict")
    return schema


def _converted(arguments: Mapping[str, Any], types: Mapping[str, Any], name: str) -> dict[str, Any]:
    import msgspec

    found = {}
    for key, value in arguments.items():
        try:
            found[key] = msgspec.convert(value, types[key], strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"`{key}` of `{name}` does not fit: {error}", None) from None
    return found


def _notes(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return what stands before the arguments, in one line, and what is said of each argument."""
    said: list[str] = []
    told: dict[str, str] = {}
    current, inside = "", False
    for line in text.splitlines():
        if _ARGUMENTS.match(line):
            inside = True
        elif inside and _SECTION.match(line):
            break
        elif inside and (found := _ARGUMENT.match(line)):
            current, told[found[1]] = found[1], found[2].strip()
        elif inside and current and line.strip():
            told[current] = f"{told[current]} {line.strip()}".strip()
        elif not inside and _SECTION.match(line) and line.strip() in ("Returns:", "Raises:", "Yields:"):
            break
        elif not inside:
            said.append(line.strip())
    return " ".join(filter(None, said)), told
