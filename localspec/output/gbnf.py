"""Convert llama.cpp's GBNF to Lark, and report errors with the lines of the user's text.

The syntax is that of llama.cpp's `grammars/README.md` and its parser, `llama-grammar.cpp`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
HEX = {"x": 2, "u": 4, "U": 8}  # digits
LAST = 0x10FFFF  # of Unicode
MAX_DEPTH = 100  # groups in a group

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(r"<(\[\d+\]|[^>\s]+)>")
_REPEATED = re.compile(r"\{\s*(\d{1,6})\s*(,?)\s*(\d{1,6})?\s*\}")


class GbnfError(Exception):
    """A fault in the text, with its line."""


@dataclass
class Node:
    """A part of a rule: `text` is its Lark if it has no parts.

    `kind` is leaf, token, reference, sequence, choice or repetition, whose `text` is what follows its part.
    """

    kind: str
    text: str = ""
    parts: list[Node] = field(default_factory=list)
    at: int = 0


def to_lark(text: str) -> str:
    """Return the Lark grammar of a GBNF grammar; raises GbnfError.

    Rules without recursion become terminals, as do runs of them in other rules: llguidance reads a terminal
    much faster than rules, and its lexer is greedy between terminals, but not within one.
    """
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise GbnfError("there is no rule `root`")
    for rule in rules.values():
        for node in _all(rule):
            if node.kind == "reference" and node.text not in rules:
                raise GbnfError(f"line {_line(text, node.at)}: there is no rule `{node.text}`")
    return _Writer(rules).lark()


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _all(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from _all(part)


class _Parser:
    """A recursive descent over the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Node]:
        """Return the rules by name; a later one of a name replaces an earlier one, as in llama.cpp."""
        found = {}
        self._skip(newlines=True)
        while self._at < len(self._text):
            name = self._match(_NAME, "expected the name of a rule")
            self._skip()
            if not self._text.startswith("::=", self._at):
                raise self._error(f"expected `::=` after `{name}`")
            self._at += 3
            self._skip(newlines=True)
            found[name] = self._choice(nested=False)
            if self._here() not in ("", "\r", "\n"):
                raise self._error(f"expected the end of the line, found `{self._here()}`")
            self._skip(newlines=True)
        return found

    def _choice(self, nested: bool) -> Node:
        parts = [self._sequence(nested)]
        while self._bar(nested):
            parts.append(self._sequence(nested))
        return Node("choice", parts=parts)

    def _bar(self, nested: bool) -> bool:
        """Read a `|`, which may begin the next line."""
        before = self._at
        self._skip(newlines=True)
        if self._here() != "|":
            self._at = self._at if nested else before
            return False
        self._at += 1
        self._skip(newlines=True)
        return True

    def _sequence(self, nested: bool) -> Node:
        parts: list[Node] = []
        while True:
            self._skip(newlines=nested)
            found = self._element()
            if found is None:
                return Node("sequence", parts=parts)
            parts.append(self._repeated(found, nested))

    def _element(self) -> Node | None:
        start, here = self._at, self._here()
        if here == '"':
            return Node("leaf", json.dumps(self._until('"'), ensure_ascii=False))
        if here == "[":
            return Node("leaf", self._class())
        if here == ".":
            self._at += 1
            return Node("leaf", f"/[\\u{{0}}-\\u{{{LAST:x}}}]/")
        if here == "(":
            return self._group()
        if here == "<":
            return Node(
                "token", f"<{self._match(_TOKEN, 'expected a token such as `<[5]>` or `<think>`')[1:-1]}>"
            )
        if not _NAME.match(here):
            return None
        return Node("reference", self._match(_NAME, ""), at=start)

    def _group(self) -> Node:
        start = self._at
        self._at += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} groups in each other")
        found = self._choice(nested=True)
        self._skip(newlines=True)
        if self._here() != ")":
            raise self._error("expected `)`" if self._here() else "the text ends in this group", start)
        self._at += 1
        self._depth -= 1
        return found

    def _repeated(self, node: Node, nested: bool) -> Node:
        while True:
            self._skip(newlines=nested)
            here = self._here()
            if here and here in "*+?":
                self._at += 1
                node = Node("repetition", here, [node])
            elif here == "{":
                match = _REPEATED.match(self._text, self._at)
                if not match:
                    raise self._error("expected a repetition such as `{2}`, `{2,}` or `{2,5}`")
                self._at = match.end()
                least, comma, most = match[1], match[2], match[3]
                most = most or ("" if comma else least)
                if most and int(most) < int(least):
                    raise self._error(f"`{match[0]}` allows no number of times")
                node = Node("repetition", f"{{{least},{most}}}", [node])
            else:
                return node

    def _until(self, closes: str) -> str:
        start, found = self._at, ""
        self._at += 1
        while self._here() != closes:
            found += self._character(start)
        self._at += 1
        return found

    def _class(self) -> str:
        """Return the regular expression of a character class."""
        start = self._at
        self._at += 1
        negated = "^" if self._here() == "^" else ""
        self._at += len(negated)
        found = ""
        while self._here() != "]":
            first = self._character(start)
            found += f"\\u{{{ord(first):x}}}"
            if self._here() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._character(start)
                if last < first:
                    raise self._error(f"the range `{first}-{last}` is empty")
                found += f"-\\u{{{ord(last):x}}}"
        self._at += 1
        if not found:
            raise self._error("a class without a character", start)
        return f"/[{negated}{found}]/"

    def _character(self, start: int) -> str:
        here = self._here()
        if not here:
            raise self._error("the text ends in this literal or class", start)
        self._at += 1
        if here != "\\":
            return here
        kind = self._here()
        self._at += 1
        if kind in HEX:
            digits = self._text[self._at : self._at + HEX[kind]]
            if not re.fullmatch(r"[0-9A-Fa-f]+", digits) or len(digits) < HEX[kind]:
                raise self._error(f"`\\{kind}` needs {HEX[kind]} hexadecimal digits")
            self._at += HEX[kind]
            if int(digits, 16) > LAST or 0xD800 <= int(digits, 16) < 0xE000:
                raise self._error(f"`\\{kind}{digits}` is no character")
            return chr(int(digits, 16))
        if kind not in ESCAPES or not kind:
            raise self._error(f"unknown escape `\\{kind}`")
        return ESCAPES[kind]

    def _skip(self, newlines: bool = False) -> None:
        """Skip blanks and comments."""
        while here := self._here():
            if here == "#":
                end = self._text.find("\n", self._at)
                self._at = end if end >= 0 else len(self._text)
            elif here in " \t" or (newlines and here in "\r\n"):
                self._at += 1
            else:
                return

    def _here(self) -> str:
        return self._text[self._at : self._at + 1]

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self._text, self._at)
        if not match:
            raise self._error(expected)
        self._at = match.end()
        return match[0]

    def _error(self, message: str, at: int | None = None) -> GbnfError:
        return GbnfError(f"line {_line(self._text, self._at if at is None else at)}: {message}")


class _Writer:
    """Writes rules as Lark: terminals are `T1`, `T2` ..., other rules `r1`, `r2` ..."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._terminals = self._without_recursion()
        letters = ("T" if name in self._terminals else "r" for name in rules)
        self._names = {
            name: f"{letter}{at}" for at, (name, letter) in enumerate(zip(rules, letters, strict=True))
        }
        self._runs: list[str] = []

    def lark(self) -> str:
        written = [
            f"{self._names[name]}: {self._write(rule, inside=name in self._terminals)}"
            for name, rule in self._rules.items()
        ]
        runs = [f"RUN{number}: {run}" for number, run in enumerate(self._runs)]
        return "\n".join(["%llguidance {}", f"start: {self._names['root']}", *written, *runs]) + "\n"

    def _without_recursion(self) -> set[str]:
        """Return the rules that refer to no rule that refers to itself, and to no special token."""
        found: set[str] = set()
        while more := {
            name for name, rule in self._rules.items() if name not in found and _fits(rule, found)
        }:
            found |= more
        return found

    def _write(self, node: Node, *, inside: bool) -> str:
        """Write a part of a rule; `inside` a terminal all of it belongs to that."""
        if not inside and _fits(node, self._terminals):
            return self._run([node])
        if node.kind == "reference":
            return self._names[node.text]
        if node.kind in ("leaf", "token"):
            return node.text
        if node.kind == "sequence" and not inside:
            return self._with_runs(node.parts)
        parts = [self._write(part, inside=inside) for part in node.parts]
        if node.kind == "sequence":
            return " ".join(parts) or '""'
        if node.kind == "choice":
            return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"
        return '""' if node.text == "{0,0}" else f"({parts[0]}){node.text}"

    def _with_runs(self, parts: Iterable[Node]) -> str:
        """Write the parts of a sequence, neighbours without recursion as one terminal."""
        groups = groupby(parts, key=lambda part: _fits(part, self._terminals))
        return " ".join(
            self._run(list(group)) if fits else " ".join(self._write(part, inside=False) for part in group)
            for fits, group in groups
        )

    def _run(self, nodes: Iterable[Node]) -> str:
        text = " ".join(self._write(node, inside=True) for node in nodes)
        if text not in self._runs:
            self._runs.append(text)
        return f"RUN{self._runs.index(text)}"


def _fits(node: Node, terminals: Collection[str]) -> bool:
    """Return whether a part can be in a terminal, if the rules `terminals` are."""
    return not any(
        each.kind == "token" or (each.kind == "reference" and each.text not in terminals)
        for each in _all(node)
    )
