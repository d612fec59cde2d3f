"""Parsers for the tool calls in a model's output, as it streams."""

from __future__ import annotations

import json
import re
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
    """Parses JSON calls between two marks; an empty `closes` stands for the end of the output.

    A mark within a string of the JSON is part of that string. `parse` turns the text between the marks into
    calls. If it returns None, that text stays text, with its marks.
    """

    def __init__(self, opens: str, closes: str, parse: ParseCalls) -> None:
        self._opens = opens
        self._closes = closes
        self._parse = parse
        self._buffer = ""
        self._body: _Body | None = None  # inside a call

    def push(self, piece: str) -> list[str | Call]:
        """Return the text and the calls that `piece` completes."""
        self._buffer += piece
        parts: list[str | Call] = []
        while (part := self._take_to_mark()) is not None:
            parts += part
        if self._body is None:
            parts += self._take_text(len(self._buffer) - overlap(self._buffer, self._opens))
        return parts

    def end(self) -> list[str | Call]:
        """Return the rest; the last call may lack its closing mark."""
        parts: list[str | Call] = []
        while self._body is not None and self._closes and self._closes in self._buffer:
            if self._parse(self._buffer) is not None:
                break
            body, _, self._buffer = self._buffer.partition(self._closes)
            self._body = None
            parts += [*self._calls(body), *self.push("")]
        if self._body is None:
            return parts + self._take_text(len(self._buffer))
        body, self._buffer, self._body = self._buffer, "", None
        return parts + self._calls(body)

    def _take_to_mark(self) -> list[str | Call] | None:
        """Take everything up to the next mark off the buffer; None if the buffer has no mark."""
        if self._body is None:
            start = self._buffer.find(self._opens)
            if start < 0:
                return None
            parts = self._take_text(start)
            self._buffer, self._body = self._buffer[len(self._opens) :], _Body(self._closes)
            return parts
        at = self._body.end(self._buffer)
        if at is None:
            return None
        if self._parse(self._buffer[:at]) is None:  # a string in it never ended
            at = self._buffer.find(self._closes)
        body, self._buffer, self._body = self._buffer[:at], self._buffer[at + len(self._closes) :], None
        return self._calls(body)

    def _calls(self, body: str) -> list[str | Call]:
        calls = self._parse(body)
        return list(calls) if calls is not None else [f"{self._opens}{body}{self._closes}"]

    def _take_text(self, length: int) -> list[str | Call]:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return [text] if text else []


_IN_STRING = re.compile(r'"|\\.', re.S)


class _Body:
    """Finds the mark `closes` after a JSON text that grows, outside of its strings."""

    def __init__(self, closes: str) -> None:
        self._closes = closes
        self._outside = re.compile(f'"|{re.escape(closes)}' if closes else '"')
        self._in_string = False
        self._scanned = 0

    def end(self, text: str) -> int | None:
        """Return the place of the mark; each character of `text` is looked at once over all calls."""
        while match := (_IN_STRING if self._in_string else self._outside).search(text, self._scanned):
            self._scanned = match.end()
            if match[0] == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                return match.start()
        rest = len(text) - (text.endswith("\\") if self._in_string else overlap(text, self._closes or '"'))
        self._scanned = max(self._scanned, rest)
        return None


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
