"""Tool calls in an answer: read from its text as it streams."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from localspec.core.stop import overlap


class Call(NamedTuple):
    """A tool that the model asks for."""

    name: str
    arguments: dict[str, Any]


class Reader(Protocol):
    """Splits an answer, as it streams, into text and calls."""

    def push(self, piece: str) -> list[str | Call]:
        """Return what is certain after `piece`: text that is no part of a call, and complete calls."""

    def end(self) -> list[str | Call]:
        """Return what is left when the answer has ended; what was meant as a call and is none is text."""


class ToolFormat(ABC):
    """How a family of models writes tool calls.

    Tools are the JSON that chat templates know, `{"type": "function", "function": {"name", "parameters"}}`.
    A tool-call format is chosen when one of its `signs` is in a model's chat template.
    """

    signs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        token: Callable[[str], int | None],
        *,
        must: bool,
        inside: bool = False,
    ) -> str:
        """Return, in Lark, what an answer may be: text that is no call, or calls of `tools` that are whole.

        Where it `must`, only calls; `inside` tells that the prompt has begun a thought. `token` gives the id
        of a special token by its text, None where the tokenizer has no such token.
        """

    @abstractmethod
    def reader(self) -> Reader:
        """Return a reader for one answer."""

    def render(
        self,
        template: Callable[..., str],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
    ) -> str:
        """Return the prompt that `template` makes of a conversation with `tools`."""
        return template(messages, tools=tools)


class Tagged:
    """Reads calls that stand between two marks; an empty `closes` is the answer's end.

    `read` makes calls of what stands between, or None of what is none: that is text, marks and all.
    """

    def __init__(self, opens: str, closes: str, read: Callable[[str], list[Call] | None]) -> None:
        self._opens = opens
        self._closes = closes
        self._read = read
        self._held = ""
        self._inside = False

    def push(self, piece: str) -> list[str | Call]:
        """Return what is certain after `piece`."""
        self._held += piece
        found: list[str | Call] = []
        while (taken := self._take()) is not None:
            found += taken
        if not self._inside:
            found += self._text(len(self._held) - overlap(self._held, self._opens))
        return found

    def end(self) -> list[str | Call]:
        """Return what is left: a last call may lack its mark where the answer ends with it."""
        if not self._inside:
            return self._text(len(self._held))
        body, self._held, self._inside = self._held, "", False
        return self._made(body)

    def _take(self) -> list[str | Call] | None:
        """Take what stands before the next mark off what is held; None where there is no mark."""
        mark = self._closes if self._inside else self._opens
        at = self._held.find(mark) if mark else -1
        if at < 0:
            return None
        if not self._inside:
            found = self._text(at)
            self._held = self._held[len(mark) :]
        else:
            body, self._held = self._held[:at], self._held[at + len(mark) :]
            found = self._made(body)
        self._inside = not self._inside
        return found

    def _made(self, body: str) -> list[str | Call]:
        calls = self._read(body)
        return list(calls) if calls is not None else [f"{self._opens}{body}{self._closes}"]

    def _text(self, length: int) -> list[str | Call]:
        text, self._held = self._held[:length], self._held[length:]
        return [text] if text else []


class Bare:
    """Reads an answer that is a call when it begins with a brace, and else text."""

    def __init__(self, read: Callable[[str], list[Call] | None]) -> None:
        self._read = read
        self._held = ""
        self._plain = False

    def push(self, piece: str) -> list[str | Call]:
        """Return `piece` once it is certain that the answer is text."""
        self._held += piece
        self._plain = self._plain or self._held.lstrip()[:1] not in ("", "{")
        return self._rest() if self._plain else []

    def end(self) -> list[str | Call]:
        """Return the call, or what was thought to be one."""
        calls = None if self._plain else self._read(self._held)
        return self._rest() if calls is None else list(calls)

    def _rest(self) -> list[str | Call]:
        text, self._held = self._held, ""
        return [text] if text else []


def in_json(body: str, arguments: str = "arguments") -> list[Call] | None:
    """Return the calls that `body` writes as JSON, one object or a list of them; None where it writes none.

    An object has a `name`, and its arguments, an object, under the key `arguments`.
    """
    try:
        values = json.loads(body)
        if "\\ud" in body.lower():  # half of a pair is no text: nothing could write it
            values = json.loads(json.dumps(values, ensure_ascii=False).encode("utf-8", "replace"))
    except ValueError:
        return None
    found = [_call(value, arguments) for value in (values if isinstance(values, list) else [values])]
    calls = [call for call in found if call is not None]
    return calls if calls and len(calls) == len(found) else None


def _call(value: Any, arguments: str) -> Call | None:
    given = value.get(arguments, {}) if isinstance(value, dict) else None
    fits = isinstance(given, dict) and isinstance(value.get("name"), str)
    return Call(value["name"], given) if fits and given is not None else None


def functions(tools: Sequence[Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the parameters' schema of each of `tools`."""
    found = [tool["function"] for tool in tools]
    return [(one["name"], one.get("parameters") or {"type": "object", "properties": {}}) for one in found]
