"""Lark grammars of tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.output.reasoning import CLOSES, OPENS
from localspec.output.tool_calls import name_and_parameters
from localspec.tools import ALTERNATIVES, SUBSTRING_OF

# The style of `json.dumps` and chat templates. With one style only, everything but the values is forced.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

TEXT = "/\\s*[^{`\\s](.|\\n)*/"  # not `{` or a fence: small models fence a call instead of marking it

MAX_LINE = 300  # characters: a substring has whole lines or indents, and whole words of longer lines
_LINE, _WORDS = re.compile(r"^[^\S\n]+|[^\n]+|\n"), re.compile(r"\s|\w+|[^\w\s]")


def lark_call(tools: Sequence[Mapping[str, Any]], arguments: str = "arguments") -> str:
    """Return a Lark expression for a JSON call of one of `tools`; `arguments` is the key of the arguments."""
    calls = []
    for name, parameters in name_and_parameters(tools):
        head = f'{{"name": {json.dumps(name)}, "{arguments}": '
        for schema in parameters.get(ALTERNATIVES) or [parameters]:
            calls.append(f'{json.dumps(head)} {_lark_object(schema)} "}}"')
    return " | ".join(calls)


def _lark_object(schema: Mapping[str, Any]) -> str:
    """Return a Lark expression for an object; with a SUBSTRING_OF, its values have a fixed order."""
    properties = schema.get("properties", {})
    if not any(isinstance(value, dict) and SUBSTRING_OF in value for value in properties.values()):
        return _lark_value(schema)
    parts, before = [], "{"
    for name, value in properties.items():
        parts += [json.dumps(f"{before}{json.dumps(name)}: "), _lark_value(value)]
        before = ", "
    return " ".join([*parts, '"}"'])


def _lark_value(schema: Mapping[str, Any]) -> str:
    """Return a Lark expression for a value, or for a substring of a text made of whole lines.

    Whole lines make a small model quote enough text to identify the place.
    """
    if SUBSTRING_OF not in schema:
        return f"%json {json.dumps({**schema, 'x-guidance': JSON_STYLE})}"
    lines = schema[SUBSTRING_OF].splitlines(keepends=True)
    chunks = [
        json.dumps(chunk, ensure_ascii=False)[1:-1]
        for line in lines
        for chunk in (_LINE if len(line) <= MAX_LINE else _WORDS).findall(line)
    ]
    return f'"\\"" %regex {json.dumps({"substring_chunks": chunks})} "\\""' if chunks else '"\\"\\""'


def lark_marked_calls(
    opens: tuple[str, int | None],
    body: str,
    closes: tuple[str, int | None],
    *,
    between: str | None,
    reasoning: str,
    must: bool,
) -> str:
    """Return a Lark grammar of text followed by calls between marks.

    A mark is its text and, if it is a special token, its id. `between` separates several calls; None, or a
    call that `must` come, allows one call only. `reasoning` may come first.
    """
    text, token = opens
    call = f"body {_mark(closes)}"
    several = between is not None and not must
    more = f"({json.dumps(between)} {_mark(opens)} {call})*" if several else ""
    if token is None:  # only its text tells where a call begins
        before = "TEXT?" if not must else ""
        head = [f"head[lazy]: {before} {json.dumps(text)}", f"calls: head {call} {more}"]
        start = "TEXT | calls"
    else:
        head = [f"calls: {_mark(opens)} {call} {more}"]
        start = "TEXT | TEXT? calls"
    return _lark(reasoning, "calls" if must else start, *head, f"body: {body}")


def lark_bare_call(call: str, *, reasoning: str, must: bool) -> str:
    """Return a Lark grammar of one call, or of text unlike JSON; `reasoning` may come first."""
    return _lark(reasoning, "call" if must else "call | TEXT", f"call: {call}")


def lark_reasoning(token_id: Callable[[str], int | None], inside: bool) -> str:
    """Return a Lark expression for the reasoning before an answer; `inside` tells that it has begun.

    It is empty for a tokenizer without reasoning tags.
    """
    opens, closes = token_id(OPENS), token_id(CLOSES)
    if opens is None or closes is None:
        return ""
    rest = f"REASONING {_token(closes)} BLANK"
    return rest if inside else f"({_token(opens)} {rest})?"


def _lark(reasoning: str, answer: str, *rules: str) -> str:
    terminals = [f"TEXT: {TEXT}"] if "TEXT" in f"{answer} {rules}" else []
    terminals += ["REASONING: /(.|\\n)*/", "BLANK: /\\s*/"] if reasoning else []
    return "\n".join([f"start: {reasoning} answer", f"answer: {answer}", *rules, *terminals]) + "\n"


def _mark(mark: tuple[str, int | None]) -> str:
    text, token = mark
    return _token(token) if token is not None else json.dumps(text) if text else ""


def _token(token: int) -> str:
    return f"<[{token}]>"
