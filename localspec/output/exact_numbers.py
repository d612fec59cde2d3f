"""Lark for JSON schemas whose `const` or `enum` has whole numbers beyond 2^53, which llguidance rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from localspec.output.lark import JSON_STYLE
from localspec.output.schema_faults import SHARED, inexact, with_exact_bounds

NOTES = {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment", *SHARED}
KINDS: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
MAX_PROPERTIES = 50


class NotWritten(Exception):
    """A schema that has such a number in a place for which there is no Lark here."""


def to_lark(schema: Mapping[str, Any]) -> str:
    """Return the grammar of a schema with such numbers in constants, also of properties and alternatives.

    Properties come in the schema's order, and no others come. Raises NotWritten for any other schema.
    """
    shared = {key: schema[key] for key in SHARED if key in schema}
    return f"start: {_value(schema, shared)}\n"


def _value(schema: Any, shared: Mapping[str, Any]) -> str:
    if not inexact(schema):
        plain = schema if isinstance(schema, Mapping) else {} if schema is True else {"not": {}}
        return f"%json {json.dumps({**shared, **with_exact_bounds(plain), 'x-guidance': JSON_STYLE})}"
    keys = schema.keys() - NOTES
    if keys <= {"const", "enum", "type"}:
        return _constants(schema)
    if keys == {"anyOf"} and isinstance(schema["anyOf"], list):
        return f"({' | '.join(_value(part, shared) for part in schema['anyOf'])})"
    if keys <= {"type", "properties", "required", "additionalProperties"} and schema.get("type") == "object":
        return _object(schema, shared)
    raise NotWritten


def _constants(schema: Mapping[str, Any]) -> str:
    values = list(schema["enum"]) if "enum" in schema else [schema["const"]]
    if "const" in schema:
        values = [value for value in values if _text(value) == _text(schema["const"])]
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kinds = [kind for name in names for kind in KINDS.get(str(name), ())]
        values = [value for value in values if type(value) in kinds]
    if not values:
        raise NotWritten
    return f"({' | '.join(_literal(_text(value)) for value in values)})"


def _object(schema: Mapping[str, Any], shared: Mapping[str, Any]) -> str:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if len(properties) > MAX_PROPERTIES or not set(required) <= properties.keys():
        raise NotWritten
    members = [
        (f"{_literal(json.dumps(name, ensure_ascii=False) + ': ')} {_value(part, shared)}", name in required)
        for name, part in properties.items()
    ]
    return f'"{{" {_members(members, begun=False)} "}}"'


def _members(members: list[tuple[str, bool]], *, begun: bool) -> str:
    """Return the members of an object from one on; `begun` tells whether one is before them."""
    if not members:
        return '""'
    (text, needed), *rest = members
    own = f'", " {text}' if begun else text
    following = _members(rest, begun=True)
    if needed:
        return f"{own} {following}"
    if begun:
        return f"({own})? {following}"
    return f"({own} {following} | {_members(rest, begun=False)})"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
