"""What an answer may be, from a JSON schema or a grammar, followed token by token."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.sampler import Constraint
from localspec.core.types import Tokens, shared_prefix
from localspec.errors import BadValue, PromptError
from localspec.output import reasoning
from localspec.output.tool_calls import functions
from localspec.tools import PART, WAYS

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# One way to write it, so that all but the values is forced, and that of `json.dumps` and of chat templates
SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

TEXT = "/\\s*[^{`\\s](.|\\n)*/"  # an answer in words: small models fence a call instead of marking it

LINE = 300  # characters: a part of a text begins and ends with a line or its indent, in longer ones a word
_LINE, _WORDS = re.compile(r"^[^\S\n]+|[^\n]+|\n"), re.compile(r"\s|\w+|[^\w\s]")

_GBNF = re.compile(r"^\s*root\s*::=", re.M)
_LARK = re.compile(r"^\s*start\s*:", re.M)


class Grammar(Constraint):
    """Follows answers in a grammar, with llguidance.

    `source` is Lark, or what `of_schema` and `of_text` return. A text that shares a start with the last one
    is followed from there: rejected guesses are taken back, not read anew.
    """

    def __init__(self, source: str, words: LLTokenizer) -> None:
        """Raise BadValue for a source that is no grammar."""
        from llguidance import LLMatcher

        self._matcher = LLMatcher(words, source, log_level=0)
        self._check(BadValue)
        self._ends = frozenset(words.eos_tokens)
        self._vocab = words.vocab_size
        self._tokens: list[int] = []
        self._mask: NDArray[np.bool_] | None = None
        self._forced: list[int] | None = None

    def allowed(self, answer: Tokens) -> NDArray[np.bool_] | None:
        """Return which tokens [vocab] may come after `answer`; None after its end."""
        if not self._follow(answer):
            return None
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check(PromptError)
            self._mask = np.unpackbits(bits, count=self._vocab, bitorder="little").view(np.bool_)
        return self._mask

    def forced(self, answer: Tokens) -> Tokens:
        """Return tokens that spell what must come after `answer`."""
        if not self._follow(answer):
            return []
        if self._forced is None:
            self._forced = list(self._matcher.compute_ff_tokens())
        return self._forced

    def _follow(self, answer: Tokens) -> bool:
        """Bring the matcher to the end of `answer`; tell whether that goes on."""
        shared = shared_prefix(self._tokens, answer)
        rest = list(answer[shared:])
        if not self._ends.isdisjoint(rest):  # what was followed before has no end in it
            return False
        if shared == len(self._tokens) == len(answer):
            return True
        if shared < len(self._tokens):
            self._matcher.rollback(len(self._tokens) - shared)
        if rest:
            self._matcher.consume_tokens(rest)
        self._check(PromptError)
        self._tokens, self._mask, self._forced = list(answer), None, None
        return True

    def _check(self, kind: type[BadValue] | type[PromptError]) -> None:
        if self._matcher.is_error():
            raise kind(f"The grammar cannot be followed: {_first_line(self._matcher.get_error())}", None)


@functools.lru_cache(maxsize=4)
def words(tokenizer: Path, vocab: int, ends: tuple[int, ...]) -> LLTokenizer:
    """Return the tokens of a `tokenizer.json` as grammars need them, for rows of width `vocab`.

    `ends` are the tokens that end an answer. It takes about a second, once a process.
    """
    from llguidance import LLTokenizer

    return LLTokenizer(tokenizer.read_text("utf-8"), n_vocab=vocab, eos_token=list(ends))


def of_schema(schema: Any, name: str) -> str:
    """Return the grammar of the JSON values that `schema` describes; raises BadValue with its `name`."""
    from llguidance import LLMatcher

    if not isinstance(schema, dict):
        raise BadValue(
            f"`{name}` is no JSON schema: it is not an object", 'It looks like {"type": "object", ...}'
        )
    source: str = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=SPELLING)
    fault = LLMatcher.validate_grammar(source)
    if fault:
        raise BadValue(
            f"`{name}` is no JSON schema that an answer can be held to: {_first_line(fault)}",
            "See https://json-schema.org for what a schema may say",
        )
    return source


def of_text(text: str, name: str) -> str:
    """Return the grammar that `text` writes, in Lark or llama.cpp's GBNF; raises BadValue with its `name`."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if _GBNF.search(text):
        try:
            text = gbnf_to_lark(text)
        except Exception as error:  # the converter raises nothing narrower
            raise BadValue(f"`{name}` is no GBNF grammar: {_first_line(str(error))}", None) from None
    elif not _LARK.search(text):
        raise BadValue(
            f"`{name}` is no grammar: it has neither a rule `start:` nor `root ::=`",
            "Write it in Lark or in GBNF; a JSON schema goes to `--json-schema`",
        )
    source: str = LLMatcher.grammar_from_lark(text)
    if fault := LLMatcher.validate_grammar(source):
        raise BadValue(f"`{name}` is no grammar: {_first_line(fault)}", None)
    return source


def read_schema(path: Path) -> str:
    """Return the grammar of the JSON schema in a file; raises BadValue for what is none."""
    try:
        schema = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise BadValue(
            f"`{path}` is not JSON: {error.msg}, line {error.lineno}", "It takes a JSON schema"
        ) from None
    return of_schema(schema, str(path))


def read_grammar(path: Path) -> str:
    """Return the grammar in a file, in Lark or GBNF; raises BadValue for what is none."""
    return of_text(_read(path), str(path))


def lark_call(tools: Sequence[Mapping[str, Any]], arguments: str = "arguments") -> str:
    """Return a Lark expression for a call of one of `tools`, as JSON with its `arguments` under that key."""
    calls = []
    for name, parameters in functions(tools):
        head = f'{{"name": {json.dumps(name)}, "{arguments}": '
        for way in parameters.get(WAYS) or [parameters]:
            calls.append(f'{json.dumps(head)} {_lark_object(way)} "}}"')
    return " | ".join(calls)


def _lark_object(schema: Mapping[str, Any]) -> str:
    """Return a Lark expression for an object; where a value is a part of a text, for all values in order."""
    properties = schema.get("properties", {})
    if not any(isinstance(one, dict) and PART in one for one in properties.values()):
        return _lark_value(schema)
    parts, before = [], "{"
    for name, one in properties.items():
        parts += [json.dumps(f"{before}{json.dumps(name)}: "), _lark_value(one)]
        before = ", "
    return " ".join([*parts, '"}"'])


def _lark_value(schema: Mapping[str, Any]) -> str:
    """Return a Lark expression for a value, which may be a part of a text.

    A small model quotes what it means to change; held to whole lines it has to say where that is.
    """
    if PART not in schema:
        return f"%json {json.dumps({**schema, 'x-guidance': SPELLING})}"
    lines = schema[PART].splitlines(keepends=True)
    found = [piece for line in lines for piece in (_LINE if len(line) <= LINE else _WORDS).findall(line)]
    pieces = [json.dumps(piece, ensure_ascii=False)[1:-1] for piece in found]
    return f'"\\"" %regex {json.dumps({"substring_chunks": pieces})} "\\""' if pieces else '"\\"\\""'


def lark_calls(
    opens: tuple[str, int | None],
    body: str,
    closes: tuple[str, int | None],
    *,
    between: str | None,
    thought: str,
    must: bool,
) -> str:
    """Return a Lark grammar of text and, after it, calls between marks: their texts and, if special, tokens.

    With `between`, several calls may follow, with that text between two, unless it `must` be one. `thought`
    may come first.
    """
    text, token = opens
    call = f"body {_mark(closes)}"
    several = between is not None and not must
    more = f"({json.dumps(between)} {_mark(opens)} {call})*" if several else ""
    if token is None:  # nothing but the words tells where a call begins
        said = "TEXT?" if not must else ""
        head = [f"head[lazy]: {said} {json.dumps(text)}", f"calls: head {call} {more}"]
        start = "TEXT | calls"
    else:
        head = [f"calls: {_mark(opens)} {call} {more}"]
        start = "TEXT | TEXT? calls"
    return _lark(thought, "calls" if must else start, *head, f"body: {body}")


def lark_bare(call: str, *, thought: str, must: bool) -> str:
    """Return a Lark grammar of one call, or of text that begins unlike JSON; `thought` may come first."""
    return _lark(thought, "call" if must else "call | TEXT", f"call: {call}")


def lark_thought(token: Callable[[str], int | None], inside: bool) -> str:
    """Return a Lark expression for what a reasoning model thinks first, which it has begun when `inside`.

    It is empty where `token` knows no marks of a thought.
    """
    opens, closes = token(reasoning.OPENS), token(reasoning.CLOSES)
    if opens is None or closes is None:
        return ""
    rest = f"THOUGHT {_token(closes)} BLANK"
    return rest if inside else f"({_token(opens)} {rest})?"


def _lark(thought: str, said: str, *rules: str) -> str:
    terminals = [f"TEXT: {TEXT}"] if "TEXT" in f"{said} {rules}" else []
    terminals += ["THOUGHT: /(.|\\n)*/", "BLANK: /\\s*/"] if thought else []
    return "\n".join([f"start: {thought} said", f"said: {said}", *rules, *terminals]) + "\n"


def _mark(mark: tuple[str, int | None]) -> str:
    text, token = mark
    return _token(token) if token is not None else json.dumps(text) if text else ""


def _token(token: int) -> str:
    return f"<[{token}]>"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise BadValue(f"There is no file `{path}`", "Check the path") from None
    except UnicodeDecodeError:
        raise BadValue(f"`{path}` is not UTF-8 text", "Save it as UTF-8") from None
    except OSError as error:
        raise BadValue(f"`{path}` cannot be read: {error.strerror}", "Check the path") from None


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0].rstrip(".") if text.strip() else "no reason given"
