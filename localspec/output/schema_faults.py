"""Find what in a JSON schema cannot constrain an answer, so that an error can name it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

EXACT = 1 << 53  # llguidance reads whole numbers beyond it as floats
FARTHEST = (1 << 63) - 1024  # the bound farthest from 0 that it can hold exactly
BOUNDS = {"minimum": (1, "exclusiveMinimum"), "maximum": (-1, "exclusiveMaximum")}
SCHEMAS = ("items", "additionalProperties", "contains", "propertyNames", "if", "then", "else", "not")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
OBJECTS = ("properties", "patternProperties", "$defs", "definitions")
SHARED = ("$defs", "definitions")  # to which references in any part may lead

Check = Callable[[Any], str]  # a schema -> its fault, "" without one


class Part(NamedTuple):
    """A schema within a schema, and the path to it, such as `properties/name`."""

    path: str
    schema: Any


def parts(schema: Any, path: str = "") -> Iterator[Part]:
    """Yield all schemas within a schema, itself first."""
    yield Part(path, schema)
    if not isinstance(schema, Mapping):
        return
    inner = [(key, schema[key]) for key in SCHEMAS if key in schema]
    for key in LISTS:
        if isinstance(schema.get(key), list):
            inner += [(f"{key}/{at}", part) for at, part in enumerate(schema[key])]
    for key in OBJECTS:
        if isinstance(schema.get(key), Mapping):
            inner += [(f"{key}/{name}", part) for name, part in schema[key].items()]
    for key, part in inner:
        yield from parts(part, f"{path}/{key}".removeprefix("/"))


def with_exact_bounds(schema: Any) -> Any:
    """Return a copy of a schema whose bounds are numbers that llguidance holds exactly.

    A bound beyond 2^53 moves inwards, by less than 1/2^52 of itself, and one beyond 64 bits to those: no
    answer is beyond the user's own bounds.
    """
    copy = deepcopy(schema)
    for _, part in parts(copy):
        if isinstance(part, dict):
            for key, (sign, exclusive) in BOUNDS.items():
                _move(part, key, exclusive, sign)
    return copy


def _move(part: dict[str, Any], key: str, exclusive: str, sign: int) -> None:
    """Make both bounds of one side one inclusive bound, if either is beyond 2^53."""
    found = [(part.get(key), 0), (part.get(exclusive), 1)]
    given = [sign * value + more for value, more in found if type(value) is int]
    if any(abs(bound) > EXACT for bound in given):
        part.pop(exclusive, None)
        part[key] = sign * _at_least(max(given))


def _at_least(number: int) -> int:
    """Return the first number from `number` on, or from -FARTHEST on, that a float holds."""
    number = max(number, -FARTHEST)
    if number > FARTHEST:
        return number  # which no bound can be
    return int(found) if (found := float(number)) >= number else int(math.nextafter(found, math.inf))


def inexact(schema: Any) -> str:
    """Return the fault of a schema with values that llguidance would round, "" without one."""
    for path, part in parts(schema):
        for key in ("const", "enum") if isinstance(part, Mapping) else ():
            if (number := _beyond(part.get(key))) is not None:
                return f"`{_named(path, key)}` has {number}, beyond 2^53: such values are not kept exactly"
    return ""


def _beyond(value: Any) -> int | None:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return next((number for each in value if (number := _beyond(each)) is not None), None)
    return value if type(value) is int and abs(value) > EXACT else None


def located(schema: Mapping[str, Any], fault: str, check: Check) -> str:
    """Return a fault with the path and the keyword that it comes from.

    That is the innermost schema that is faulty by itself, and the keyword without which it is not.
    """
    shared = {key: schema[key] for key in SHARED if key in schema}
    found = Part("", schema)
    for part in parts(schema):
        inside = part.path.startswith(found.path)
        if inside and isinstance(part.schema, Mapping) and (inner := check({**shared, **part.schema})):
            found, fault = part, inner
    for key in sorted(found.schema, key="type".__eq__):  # what a type forbids, another key says
        rest = {name: value for name, value in found.schema.items() if name != key}
        if not check({**shared, **rest}):
            return f"`{_named(found.path, key)}`: {fault}"
    return f"`{found.path}`: {fault}" if found.path else fault


def _named(path: str, key: str) -> str:
    return f"{path}/{key}".removeprefix("/")
