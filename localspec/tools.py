"""Tools from Python functions: the schema from the signature, the descriptions from the docstring."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from localspec.errors import BadValue, LocalspecError, UnknownName, suggestion

ALTERNATIVES = "x-alternatives"  # in a schema for a grammar: the schemas of which one must match
SUBSTRING_OF = "x-substring-of"  # and a text of which the value must be a substring
Access = Literal["none", "read", "write", "test", "run", "fetch", "local"]  # local: fetch from own networks
Properties = Mapping[str, Mapping[str, Any]]  # the schema of each argument

_ARGUMENTS = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$")
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SECTION = re.compile(r"^\S.*:\s*$")


class ToolFailed(LocalspecError):
    """A call with wrong arguments, or a tool that failed; the model reads the message."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    `parameters` is the JSON schema of the arguments; `run` takes them by name and returns the result.
    `access` is the permission that a call needs, and `preview` returns a text, a diff or a command that shows
    what a call would do. `argument_constraints` returns the schemas of the arguments that can be right at the
    moment, with SUBSTRING_OF for a substring of a text; an empty list constrains nothing. `permissions`
    yields the permissions of a call one after the other, each with its preview, in place of `access` and
    `preview`: the next one is asked for once the one before it is given. `defaults` are those of arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    run: Callable[..., Any]
    access: Access = "none"
    preview: Callable[..., str] | None = None
    argument_constraints: Callable[[], Sequence[Properties]] | None = None
    permissions: Callable[..., Iterator[tuple[Access, str]]] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def needed(self, arguments: Mapping[str, Any]) -> Iterator[tuple[Access, str]]:
        """Yield each permission that a call needs, with its preview, "" without one."""
        if self.permissions:
            yield from self.permissions(**arguments)
        else:
            yield self.access, self.preview(**arguments) if self.preview else ""

    @property
    def schema(self) -> dict[str, Any]:
        """The tool in the JSON of chat templates."""
        return self._schema(self.parameters)

    @property
    def schema_now(self) -> dict[str, Any]:
        """The tool for a grammar, with the arguments that can be right at the moment."""
        constraints = self.argument_constraints() if self.argument_constraints else []
        schemas = [
            {**self.parameters, "properties": properties, "required": list(properties)}
            for properties in constraints
        ]
        return self._schema({**self.parameters, ALTERNATIVES: schemas} if schemas else self.parameters)

    def _schema(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ToolFailed for an unknown or a missing argument."""
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
    """Return `function` as a tool; raises BadValue if no schema can describe its arguments.

    Every argument needs a type. The docstring up to its arguments is the description of the tool; the
    description of an argument is in an `Args:` section, or a text in `Annotated[TYPE, "..."]`.
    """
    name = name or str(getattr(function, "__name__", type(function).__name__))
    summary, descriptions = _parse_docstring(inspect.getdoc(function) or "")
    if not summary:
        raise BadValue(f"`{name}` has no docstring, so a model cannot know what it is for", "Write one")
    types = _argument_types(function, name)
    signature = inspect.signature(function).parameters
    parameters = {
        "type": "object",
        "properties": {
            argument: _argument_schema(hint, f"{name}({argument})", descriptions.get(argument))
            for argument, hint in types.items()
        },
        "required": [
            argument for argument in types if signature[argument].default is inspect.Parameter.empty
        ],
        "additionalProperties": False,
    }

    def run(**arguments: Any) -> Any:
        result = function(**_converted(arguments, types, name))
        if not inspect.iscoroutine(result):
            return result
        import asyncio  # slow to import

        return asyncio.run(result)

    defaults = {
        argument: signature[argument].default
        for argument in types
        if signature[argument].default is not inspect.Parameter.empty
    }
    return Tool(name, summary, parameters, run, access, preview, argument_constraints, None, defaults)


def _argument_schema(hint: Any, shown: str, description: str | None) -> dict[str, Any]:
    schema = _schema_of(hint, shown)
    notes = getattr(hint, "__metadata__", ())
    description = description or next((note for note in notes if isinstance(note, str)), None)
    return schema | ({"description": description} if description else {})


def imported(spec: str) -> Tool:
    """Return the function named MODULE:FUNCTION as a tool; raises BadValue, UnknownName."""
    place, _, name = spec.partition(":")
    if os.getcwd() not in sys.path:  # the path of an installed command lacks the working folder
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
    function = getattr(module, name, None)
    if not inspect.isroutine(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UnknownName(f"`{place}` has no function `{name}`", name, names)
    made = tool(function, access="run")

    def run(**arguments: Any) -> Any:
        with redirect_stdout(sys.stderr):  # stdout is for answers and JSON
            return made.run(**arguments)

    return replace(made, run=run)


def _argument_types(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise BadValue(
            f"The types of `{name}` cannot be read: {error}", "Import the types that they name"
        ) from None
    types = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise BadValue(
                f"`{name}` cannot be a tool: `{parameter.name}` is not a keyword argument",
                "Make every argument a keyword argument",
            )
        if parameter.name not in hints:
            raise BadValue(
                f"`{parameter.name}` of `{name}` has no type", "Write a type, such as `argument: str`"
            )
        types[parameter.name] = hints[parameter.name]
    return types


def _schema_of(hint: Any, name: str) -> dict[str, Any]:
    import msgspec

    try:
        schemas, components = msgspec.json.schema_components([hint], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise BadValue(
            f"`{name}` has a type that JSON cannot hold: {error}", "Use str, int, list ..."
        ) from None
    if components:
        raise BadValue(f"`{name}` has a type of several fields", "Use str, int, float, bool, list or dict")
    return dict(schemas[0])


def _converted(arguments: Mapping[str, Any], types: Mapping[str, Any], name: str) -> dict[str, Any]:
    import msgspec

    converted = {}
    for key, value in arguments.items():
        try:
            converted[key] = msgspec.convert(value, types[key], strict=False)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"`{key}` of `{name}` does not fit: {error}", None) from None
    return converted


def _parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text before the arguments as one line, and the description of each argument."""
    summary: list[str] = []
    descriptions: dict[str, str] = {}
    current, inside = "", False
    for line in text.splitlines():
        if _ARGUMENTS.match(line):
            inside = True
        elif inside and _SECTION.match(line):
            break
        elif inside and (match := _ARGUMENT.match(line)):
            current, descriptions[match[1]] = match[1], match[2].strip()
        elif inside and current and line.strip():
            descriptions[current] = f"{descriptions[current]} {line.strip()}".strip()
        elif not inside and _SECTION.match(line) and line.strip() in ("Returns:", "Raises:", "Yields:"):
            break
        elif not inside:
            summary.append(line.strip())
    return " ".join(filter(None, summary)), descriptions
