"""Two hundred calls sampled under the grammars of the tool-call formats: all are complete and valid."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

import jsonschema
import letters
import pytest

from localspec import plugins
from localspec.agent.turn import Turn, parse_turn
from localspec.core.text import TextStream
from localspec.output import grammar
from localspec.output.grammar import Grammar
from localspec.tools import SUBSTRING_OF, Tool, tool

CALLS = 200
LONGEST = 4000  # tokens
TOKENIZER = letters.tokenizer()
END = TOKENIZER.token_to_id("<|end|>")
CLOSING = [TOKENIZER.token_to_id(mark) for mark in ('"', "}", "]", ",", *letters.MARKS)]


def plan(
    title: str,
    kind: Literal["walk", "talk"],
    steps: list[dict[str, list[int]]],
    share: float,
    urgent: bool = False,
    notes: Annotated[str | None, "what else"] = None,
) -> str:
    """Make a plan."""
    return title


def stop() -> str:
    """Stop."""
    return ""


NESTED = {
    "type": "object",
    "properties": {
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "at": {"$ref": "#/$defs/point"}},
            "required": ["city", "at"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"enum": ["a", "b", 'c"d']}, "minItems": 1, "maxItems": 3},
    },
    "required": ["place", "tags"],
    "additionalProperties": False,
    "$defs": {
        "point": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    },
}
QUOTED = 'def say():\n    print("\\t\u00e4")\n\n\tif True:  # \u201cso\u201d\n'


def change(old: str, new: str) -> str:
    """Change a text."""
    return old + new


def argument_constraints() -> list[dict[str, dict[str, Any]]]:
    return [{"old": {SUBSTRING_OF: QUOTED}, "new": {"type": "string"}}]


TOOLS = {
    one.name: one
    for one in (
        tool(plan),
        tool(stop),
        Tool("book", "Book.", NESTED, print),
        tool(change, argument_constraints=argument_constraints),
    )
}


@pytest.fixture(scope="module")
def words() -> Any:
    return grammar.grammar_tokenizer(TOKENIZER, TOKENIZER.get_vocab_size(), (END,))


def drawn(found: Grammar, chance: random.Random) -> str:
    """Sample an answer token by token, as an untrained model that prefers closing tokens would."""
    answer: list[int] = []
    stream = TextStream(TOKENIZER, shown=True)
    text = ""
    while len(answer) < LONGEST:
        forced = list(found.forced(answer))
        mask = found.allowed(answer)
        assert mask is not None
        if forced:
            assert mask[forced[0]]
        allowed = [int(token) for token in mask.nonzero()[0]]
        closing = [token for token in CLOSING if mask[token]]
        token = chance.choice(closing if closing and chance.random() < 0.4 else allowed)
        if token == END:
            return text + stream.flush()
        answer.append(token)
        text += stream.push(token)
    raise AssertionError(f"no end after {LONGEST} tokens: {text[-200:]}")


@pytest.mark.parametrize("name", plugins.names("tool_formats"))
def test_every_call_is_complete_and_matches_its_schema(name: str, words: Any) -> None:
    tool_format = plugins.part("tool_formats", name).made_by()
    schemas = [one.schema_now for one in TOOLS.values()]
    source = tool_format.grammar(schemas, TOKENIZER.token_to_id, must=True)
    called = set()
    for seed in range(CALLS // len(plugins.names("tool_formats"))):
        text = drawn(Grammar(source, words), random.Random(seed))
        turn = Turn()
        list(parse_turn([(text, ())], tool_format, turn, inside=False))
        assert turn.calls, text
        for call in turn.calls:
            jsonschema.validate(call.arguments, TOOLS[call.name].parameters)
            TOOLS[call.name].check(call.arguments)
            assert call.name != "change" or call.arguments["old"] in QUOTED
            called.add(call.name)
        assert not turn.text.strip(), text
    assert called == TOOLS.keys()
