"""The tool and the first argument of a call that is still being written."""

from __future__ import annotations

import json
import re
from contextlib import suppress

MAX_SHOWN = 50  # characters of the first argument

_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"|\[TOOL_CALLS\]\s*([\w.-]+)')
_FIRST = re.compile(r'\{\s*"((?:[^"\\]|\\.)*)"\s*:\s*("(?:[^"\\]|\\.)*("?)|[\w.+-]+)', re.DOTALL)


def call_so_far(text: str) -> str:
    """Return what is known of a call by its JSON text so far, "" before it has a name.

    The formats differ in the marks around a call, and in the name of the object with the arguments.
    """
    names = list(_NAME.finditer(text))
    if not names:
        return ""
    name = names[-1][1] or names[-1][2]
    first = _FIRST.search(text, names[-1].end())
    if first is None:
        return name
    argument, value, closed = first.groups()
    text = _unescaped(value if closed or not value.startswith('"') else f'{value}"')
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}\N{HORIZONTAL ELLIPSIS}"
    return f"{name}({argument}={shown!r})" if value.startswith('"') else f"{name}({argument}={shown})"


def cut_answer(text: str, name: str, argument: str) -> str | None:
    """Return the argument of the last call in a text that ends within it; None if that is another call."""
    names = list(_NAME.finditer(text))
    if not names or (names[-1][1] or names[-1][2]) != name:
        return None
    first = _FIRST.search(text, names[-1].end())
    return _unescaped(f'{first[2]}"') if first and first[1] == argument and not first[3] else None


def _unescaped(value: str) -> str:
    with suppress(ValueError):  # an escape is half written
        return str(json.loads(value))
    return value.strip('"')
