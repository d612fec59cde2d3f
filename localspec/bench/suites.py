"""Prompt suites: shipped ones, Spec-Bench's questions, or a file of the user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.disk import given
from localspec.errors import BadValue, printable, suggestion

HERE = Path(__file__)
QUICK = "quick"
SPEC_BENCH = "spec-bench"
SPEC_BENCH_SOURCE = "https://github.com/hemingkx/Spec-Bench (data/spec_bench/question.jsonl)"
CLASSES = {  # of Spec-Bench (Xia et al. 2024, table 2), which counts its eight MT-bench categories as one
    "translation": "translation",
    "summarization": "summarization",
    "qa": "question answering",
    "math_reasoning": "mathematical reasoning",
    "rag": "retrieval-augmented generation",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """The user's `turns` of one conversation, answered one after the other."""

    suite: str
    name: str
    kind: str  # its class within the suite
    turns: tuple[str, ...]
    system: str | None = None


def names() -> list[str]:
    """List the suites that are shipped."""
    return sorted(path.stem for path in _folder().glob("*.jsonl"))


def load(text: str) -> list[Prompt]:
    """Return the prompts of a shipped suite, of `spec-bench=FILE`, or of a file of JSON lines.

    Raises BadValue for an unknown name, and for a bad line with its number.
    """
    if text in names():
        return list(_read(_folder() / f"{text}.jsonl", text))
    name, equals, place = text.partition("=")
    if name == SPEC_BENCH:
        if not equals:
            raise BadValue(
                "`spec-bench` needs its questions",
                f"Give `spec-bench=FILE` from {SPEC_BENCH_SOURCE}",
            )
        return list(_read(given.path_of(place), SPEC_BENCH))
    path = given.path_of(text)
    if not path.is_file():
        raise BadValue(f"Unknown suite or file `{text}`", suggestion(text, [*names(), SPEC_BENCH]))
    return list(_read(path, path.stem))


def _read(path: Path, suite: str) -> Iterator[Prompt]:
    count = 0
    for number, line in enumerate(given.read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            yield from _first(values, suite) if "suite" in values else [_prompt(values, suite, number)]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadValue(
                f"Line {number} of `{path}` is not a prompt: {printable(str(error))}",
                'Each line is {"prompt": "..."}, {"messages": [{"role": "user", "content": "..."}, ...]}'
                ' or {"suite": NAME, "first": N}',
            ) from None
        count += 1
    if not count:
        raise BadValue(f"`{path}` has no prompts", 'Write lines such as {"prompt": "..."}')


def _first(values: dict[str, Any], suite: str) -> Iterator[Prompt]:
    """Yield the first prompts of a shipped suite, as a class of their own."""
    name, count = values["suite"], values["first"]
    if name not in names() or name == suite or not isinstance(count, int) or count < 1:
        raise ValueError(f"`{name}` is not a shipped suite, or `first` is not a number above 0")
    for prompt in load(name)[:count]:
        yield replace(prompt, suite=suite, kind=name)


def _prompt(values: dict[str, Any], suite: str, number: int) -> Prompt:
    name = str(values.get("name", values.get("question_id", number)))
    kind = str(values.get("class", values.get("category", suite)))
    if suite == SPEC_BENCH:
        kind = CLASSES.get(kind, "multi-turn conversation")
    if "messages" in values:
        system, turns = _from_messages(values["messages"])
    else:
        turns = values["turns"] if "turns" in values else [values["prompt"]]
        system = values.get("system")
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError("a turn is empty or not a text")
    return Prompt(suite, name, kind, tuple(turns), system)


def _from_messages(messages: list[dict[str, str]]) -> tuple[str | None, list[str]]:
    """Return the system prompt and the user's turns; the measured model writes its own answers."""
    system = next((message["content"] for message in messages if message["role"] == "system"), None)
    return system, [message["content"] for message in messages if message["role"] == "user"]


def _folder() -> Path:
    """Return the folder of the suites: in an installed package, or in the root of a checkout."""
    shipped = HERE.parents[1] / "_suites"
    return shipped if shipped.is_dir() else HERE.parents[2] / "suites"
