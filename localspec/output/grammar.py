"""Constrain answers to a JSON schema or a grammar, token by token, with llguidance."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.sampler import Constraint
from localspec.core.types import Tokens, shared_prefix
from localspec.disk import given
from localspec.errors import BadValue, PromptError, printable
from localspec.output import exact_numbers, gbnf, schema_faults
from localspec.output.lark import JSON_STYLE

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer

_GBNF = re.compile(r"^\s*root\s*::=", re.M)
_LARK = re.compile(r"^\s*start\s*:", re.M)


class Grammar(Constraint):
    """The tokens that a grammar allows and forces after an answer.

    `source` is Lark, or the result of `from_schema` or `from_text`. The matcher keeps the last answer and
    rolls back to the start that a new one shares with it, so rejected draft tokens cost little.
    """

    def __init__(self, source: str, tokenizer: LLTokenizer) -> None:
        """Raise BadValue for a source that is not a grammar."""
        from llguidance import LLMatcher

        self._matcher = LLMatcher(tokenizer, source, log_level=0)
        self._check(BadValue)
        self._stop_tokens = frozenset(tokenizer.eos_tokens)
        self._vocab_size = tokenizer.vocab_size
        self._tokens: list[int] = []
        self._mask: NDArray[np.bool_] | None = None
        self._forced: list[int] | None = None

    def allowed(self, answer: Tokens) -> NDArray[np.bool_] | None:
        """Return which tokens [vocab_size] may come after `answer`; None after its end."""
        if not self._advance(answer):
            return None
        if self._mask is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check(PromptError)
            self._mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        return self._mask

    def forced(self, answer: Tokens) -> Tokens:
        """Return the tokens that must come after `answer`."""
        if not self._advance(answer):
            return []
        if self._forced is None:
            self._forced = list(self._matcher.compute_ff_tokens())
        return self._forced

    def _advance(self, answer: Tokens) -> bool:
        """Bring the matcher to the end of `answer`; return False if it has ended.

        Raises PromptError for a token that the grammar forbids; the matcher stays before it.
        """
        shared = shared_prefix(self._tokens, answer)
        rest = list(answer[shared:])
        if not self._stop_tokens.isdisjoint(rest):  # the shared start has no stop token
            return False
        if shared == len(self._tokens) == len(answer):
            return True
        if shared < len(self._tokens):
            self._matcher.rollback(len(self._tokens) - shared)
        taken = self._matcher.try_consume_tokens(rest)
        self._tokens, self._mask, self._forced = list(answer[: shared + taken]), None, None
        self._check(PromptError)
        if taken < len(rest):
            raise PromptError(f"The grammar forbids token {rest[taken]} after {shared + taken} others", None)
        return True

    def _check(self, kind: type[BadValue] | type[PromptError]) -> None:
        if self._matcher.is_error():
            raise kind(f"The grammar cannot be followed: {_first_line(self._matcher.get_error())}", None)


@functools.lru_cache(maxsize=4)
def grammar_tokenizer(tokenizer: Tokenizer, vocab_size: int, stop_tokens: tuple[int, ...]) -> LLTokenizer:
    """Return llguidance's form of a tokenizer, for logits of `vocab_size`.

    It takes about a second, once a process.
    """
    from llguidance import LLTokenizer

    return LLTokenizer(tokenizer.to_str(), n_vocab=vocab_size, eos_token=list(stop_tokens))


def from_schema(schema: Any, name: str) -> str:
    """Return the grammar of a JSON schema; raises BadValue that names it `name`."""
    if not isinstance(schema, dict):
        raise BadValue(
            f"`{name}` is not a JSON schema: it is not an object", 'It looks like {"type": "object", ...}'
        )
    try:
        exact = schema_faults.with_exact_bounds(schema)
        source, fault = _compiled(exact)
        if fault:
            fault = schema_faults.located(exact, fault, lambda part: _compiled(part)[1])
        if not fault and (fault := schema_faults.inexact(schema)):
            source, fault = _with_exact_constants(schema, fault)
    except RecursionError:
        fault = "it has too many schemas in each other"
    if fault:
        raise BadValue(
            f"`{name}` is not a JSON schema that can constrain an answer: {printable(fault, 300)}",
            "See https://json-schema.org for what a schema may say",
        )
    return source


def _with_exact_constants(schema: dict[str, Any], fault: str) -> tuple[str, str]:
    """Return the grammar of a schema with constants that llguidance would round, else their fault."""
    from llguidance import LLMatcher

    try:
        source: str = LLMatcher.grammar_from_lark(exact_numbers.to_lark(schema))
    except exact_numbers.NotWritten:
        return "", fault
    return source, fault if LLMatcher.validate_grammar(source) else ""


def _compiled(schema: Any) -> tuple[str, str]:
    """Return the grammar of a JSON schema, and the fault that it has, "" without one."""
    from llguidance import LLMatcher

    try:
        source: str = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_STYLE)
        fault = str(LLMatcher.validate_grammar(source))
    except (ValueError, RecursionError) as error:  # a number or half a character that Rust cannot hold
        return "", _first_line(str(error))
    lines = fault.strip().splitlines()
    if lines and lines[0].endswith(":"):  # an excerpt follows, then the reason
        return source, f"{lines[0]} {lines[-1].removeprefix('error: ')}"
    return source, _first_line(fault) if lines else ""


def from_text(text: str, name: str) -> str:
    """Return a grammar from Lark or llama.cpp's GBNF; raises BadValue that names it `name`."""
    from llguidance import LLMatcher

    if _GBNF.search(text):
        try:
            text = gbnf.to_lark(text)
        except gbnf.GbnfError as error:
            raise BadValue(f"`{name}` is not a GBNF grammar: {printable(str(error), 200)}", None) from None
    elif not _LARK.search(text):
        raise BadValue(
            f"`{name}` is not a grammar: it has neither a rule `start:` nor `root ::=`",
            "Write it in Lark or in GBNF; a JSON schema goes to `--json-schema`",
        )
    source: str = LLMatcher.grammar_from_lark(text)
    if fault := LLMatcher.validate_grammar(source):
        raise BadValue(f"`{name}` is not a grammar: {_first_line(fault)}", None)
    return source


def read_schema(path: Path) -> str:
    """Return the grammar of a JSON schema in a file; raises BadValue if it is not one."""
    try:
        schema = json.loads(given.read_text(path))
    except json.JSONDecodeError as error:
        raise BadValue(
            f"`{path}` is not JSON: {error.msg}, line {error.lineno}", "It takes a JSON schema"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 1,000 lists in another
        raise BadValue(f"`{path}` is not JSON: {error}", "It takes a JSON schema") from None
    return from_schema(schema, str(path))


def read_grammar(path: Path) -> str:
    """Return the grammar in a Lark or GBNF file; raises BadValue if it is not one."""
    return from_text(given.read_text(path), str(path))


def _first_line(text: str) -> str:
    return printable(text.strip().splitlines()[0].rstrip("."), 200) if text.strip() else "no reason given"
