"""Parsers for the tool calls in a model's output, as it streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from localspec.core.stop import overlap


class Call(NamedTuple):
    """A model's call of a tool."""

    name: str
    arguments: dict[str, Any]


ParseCalls = Callable[[str], list[Call] | None]  # None for a text that is not calls


class ToolCallParser(Protocol):
    """Splits an output, as it streams, into text and calls."""

    def push(self, piece: str) -> list[str | Call]:
        """Return the text outside calls, and the calls, that `piece` completes."""

    def end(self) -> list[str | Call]:
        """Return the rest, once the output has ended; a malformed call is text."""


class TaggedParser:
    """Parses calls between two marks; an empty `closes` stands for the end of the output.

    `parse` turns the text between the marks into calls. If it returns None, that text stays text, with its
    marks.
    """

    def __init__(self, opens: str, closes: str, parse: ParseCalls) -> None:
        self._opens = opens
        self._closes = closes
        self._parse = parse
        self._buffer = ""
        self._inside = False

    def push(self, piece: str) -> list[str | Call]:
        """Return the text and the calls that `piece` completes."""
        self._buffer += piece
        parts: list[str | Call] = []
        while (part := self._take_to_mark()) is not None:
            parts += part
        if not self._inside:
            parts += self._take_text(len(self._buffer) - overlap(self._buffer, self._opens))
        return parts

    def end(self) -> list[str | Call]:
        """Return the rest; the last call may lack its closing mark."""
        if not self._inside:
            return self._take_text(len(self._buffer))
        body, self._buffer, self._inside = self._buffer, "", False
        return self._calls(body)

    def _take_to_mark(self) -> list[str | Call] | None:
        """Take everything up to the next mark off the buffer; None if the buffer has no mark."""
        mark = self._closes if self._inside else self._opens
        at = self._buffer.find(mark) if mark else -1
        if at < 0:
            return None
        if not self._inside:
            parts = self._take_text(at)
            self._buffer = self._buffer[len(mark) :]
        else:
            body, self._buffer = self._buffer[:at], self._buffer[at + len(mark) :]
            parts = self._calls(body)
        self._inside = not self._inside
        return parts

    def _calls(self, body: str) -> list[str | Call]:
        calls = self._parse(body)
        return list(calls) if calls is not None else [f"{self._opens}{body}{self._closes}"]

    def _take_text(self, length: int) -> list[str | Call]:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return [text] if text else []


class BareJsonParser:
    """Parses an output that is a JSON call if it begins with a brace, and text otherwise."""

    def __init__(self, parse: ParseCalls) -> None:
        self._parse = parse
        self._buffer = ""
        self._is_text = False

    def push(self, piece: str) -> list[str | Call]:
        """Return `piece`, if the output is text."""
        self._buffer += piece
        self._is_text = self._is_text or self._buffer.lstrip()[:1] not in ("", "{")
        return self._take_text() if self._is_text else []

    def end(self) -> list[str | Call]:
        """Return the call, or text that only looked like one."""
        calls = None if self._is_text else self._parse(self._buffer)
        return self._take_text() if calls is None else list(calls)

    def _take_text(self) -> list[str | Call]:
        text, self._buffer = self._buffer, ""
        return [text] if text else []


def parse_json_calls(body: str, arguments: str = "arguments") -> list[Call] | None:
    """Return the calls in a JSON object or list of objects, None if `body` is anything else.

    An object has a `name`, and an object under the key `arguments`.
    """
    try:
        values = json.loads(body)
        if "\\ud" in body.lower():  # replace lone surrogates, which cannot be encoded
            values = json.loads(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace"))
    except ValueError:
        return None
    parsed = [_parse_call(value, arguments) for value in (values if isinstance(values, list) else [values])]
    calls = [call for call in parsed if call is not None]
    return calls if calls and len(calls) == len(parsed) else None


def _parse_call(value: Any, arguments: str) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    given = value.get(arguments, {})
    return Call(value["name"], given) if isinstance(given, dict) else None


def name_and_parameters(tools: Sequence[Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the name of each tool, and the JSON schema of its parameters."""
    functions = [tool["function"] for tool in tools]
    empty = {"type": "object", "properties": {}}
    return [(function["name"], function.get("parameters") or empty) for function in functions]
