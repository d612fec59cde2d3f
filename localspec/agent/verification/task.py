"""The demands that the words of a task make: a question, a program to run, tests to write."""

from __future__ import annotations

import re
from typing import NamedTuple

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_QUESTION = re.compile(
    r"(why|which|what|who|whose|whom|where|when|how|is|are|was|were|does|do|did|has|have|should|explain"
    r"|describe|summari[sz]e|tell me|show me|list)\b",
    re.IGNORECASE,
)
_ORDER = re.compile(
    r"(please |then |and |also |now )?(add|append|change|correct|create|delete|edit|fix|give|implement|insert"
    r"|make|move|raise|refactor|remove|rename|repair|replace|rewrite|set|sort|split|translate|turn|update"
    r"|write)\b",
    re.IGNORECASE,
)
_REQUEST = re.compile(r"(please|can|could|would|will) ", re.IGNORECASE)
_RUN = re.compile(
    r"\b(run|execute|start) (it|them|this|that|all|the|its|your|my|both|every|each|`?\w+\.\w+|`?python)\b"
    r"|\btry it( out)?\b",
    re.IGNORECASE,
)
_NOT = r"(?:\bnot|\bcannot|n't|n\u2019t|\bnever|\bwithout)"
_NOT_RUN = re.compile(rf"({_NOT}|\b(when|if) (i|you|we)|\bto) (run|execute|start)", re.IGNORECASE)
_EVERYWHERE = re.compile(r"\b(all|every|each)( the| other| its)? files?\b|\beverywhere\b", re.IGNORECASE)
_OBJECT = r"\s+((?!so\b|that\b|until\b|to\b|for\b|because\b|and\b)\S+\s+){0,5}?[`'\"(]?"
_TESTS = re.compile(
    rf"\b(add|write|create|extend|update|edit|change|correct|delete|remove|rename|move){_OBJECT}"
    rf"(tests?\b|test_\w|\w+_test\b)|\b(fix|repair){_OBJECT}(test_\w|\w+_test\.)"
    rf"|{_EVERYWHERE.pattern}",
    re.IGNORECASE,
)
FAILS = (
    r"(?:fails?|failed|failing|crash(?:es|ed)?|breaks?|stops|ends?|raises?|exits?|errors?"
    r"|(?:do|does|did|will) ?(?:not|n't|n\u2019t) (?:work|run|start|pass))\b"
)
_FAILING = re.compile(
    rf"\b(failing|broken|red|crashing) (\w+ )?tests?\b|\btests?\b[^.!?\n]*\b(pass|{FAILS})"
    rf"|\b\w[\w/-]*\.\w+`?\s+(always |now |sometimes )?{FAILS}|\b(why|find out why)\b[^.!?\n]*{FAILS}",
    re.IGNORECASE,
)
_NAMES = r"[`'\"]?([\w.-]*\w)(?:\(\))?[`'\"]?\s+(?:to|into|as|with|by)\s+[`'\"]?([\w.-]*\w)"
_RENAME = re.compile(rf"\brename\s+(?:the\s+)?(?:\w+\s+)?{_NAMES}", re.IGNORECASE)
_REPLACE = re.compile(rf"\b(?:from|replace)\s+{_NAMES}", re.IGNORECASE)
_NOT_TESTS = re.compile(rf"({_NOT}|\bleave)\b[^.!?\n]*\btest", re.IGNORECASE)


class Demands(NamedTuple):
    """The demands of a task, as far as its words tell."""

    question: bool  # only asks, so that nothing is to be changed
    run: bool  # a program is to be run
    tests: bool  # tests are to be written or changed
    failing: bool  # tests or a program fail
    change: bool  # files are to be changed
    renames: tuple[tuple[str, str], ...]  # names that are replaced, and those in their place
    all_files: bool  # in all files, and not only in those that the task names


def demands(task: str) -> Demands:
    """Return the demands of a task."""
    sentences = [part.strip() for part in _SENTENCE.split(task) if part.strip()]
    orders = [part for part in sentences if _orders(part) or not _asks(part)]
    run = any(_RUN.search(part) and not _NOT_RUN.search(part) for part in orders)
    tests = any(_TESTS.search(part) for part in sentences) and not any(map(_NOT_TESTS.search, sentences))
    question = not any(map(_orders, sentences)) and any(map(_asks, sentences))
    failing = any(map(_FAILING.search, sentences))
    change = any(map(_orders, sentences))
    all_files = _EVERYWHERE.search(task) is not None
    renames = [*_RENAME.findall(task), *(_REPLACE.findall(task) if all_files else ())] if change else []
    return Demands(question and not run, run, tests, failing, change, tuple(renames), all_files)


def _asks(sentence: str) -> bool:
    if _REQUEST.match(sentence):
        return False
    return sentence.endswith("?") or _QUESTION.match(sentence) is not None


def _orders(sentence: str) -> bool:
    """Return whether a sentence, or a part of it after a comma or an `and`, begins with an order."""
    if _REQUEST.match(sentence):
        return True
    parts = re.split(r"[,;:] | and | then ", sentence)
    return any(_ORDER.match(part.strip()) for part in parts)
