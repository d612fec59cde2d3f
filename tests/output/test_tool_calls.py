"""Tool calls parsed from an output in any pieces."""

from __future__ import annotations

import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.output.tool_calls import (
    BareJsonParser,
    Call,
    TaggedParser,
    ToolCallParser,
    _Body,
    name_and_parameters,
    parse_json_calls,
)

READ = Call("read_file", {"path": "a.py"})
LIST = Call("list_files", {})
WRITTEN = '{"name": "read_file", "arguments": {"path": "a.py"}}'
TWO = f"Let me look.\n<call>\n{WRITTEN}\n</call>\n<call>" + '{"name": "list_files"}</call>'


def tagged() -> TaggedParser:
    return TaggedParser("<call>", "</call>", parse_json_calls)


def read(parser: ToolCallParser, text: str, cuts: list[int]) -> list[str | Call]:
    """Return the parts of `text`, parsed in pieces, with neighbouring texts joined."""
    found: list[str | Call] = []
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[start:end] for start, end in zip(places, places[1:], strict=False)]
    for one in [each for piece in pieces for each in parser.push(piece)] + parser.end():
        if isinstance(one, str) and found and isinstance(found[-1], str):
            found[-1] += one
        else:
            found.append(one)
    return found


@given(st.lists(st.integers(0, len(TWO)), max_size=12))
def test_marked_calls_are_parsed_from_any_pieces(cuts: list[int]) -> None:
    assert read(tagged(), TWO, cuts) == ["Let me look.\n", READ, "\n", LIST]


@given(st.text("<cal>/{}x ", max_size=30), st.lists(st.integers(0, 30), max_size=8))
def test_no_text_is_lost_whatever_it_looks_like(text: str, cuts: list[int]) -> None:
    assert "".join(map(str, read(tagged(), text, cuts))) in (text, f"{text}</call>")


def test_text_is_returned_as_soon_as_possible() -> None:
    parser = tagged()
    assert parser.push("Look <") == ["Look "]
    assert parser.push("b> <ca") == ["<b> "]
    assert parser.push(f"ll>{WRITTEN}") == []
    assert parser.push("</call>") == [READ]
    assert parser.end() == []


@pytest.mark.parametrize("broken", ["{", '{"name": 3}', '{"name": "x", "arguments": []}', "", "[]", "[1]"])
def test_a_malformed_call_is_text_with_its_marks(broken: str) -> None:
    assert read(tagged(), f"a<call>{broken}</call>b", [3]) == [f"a<call>{broken}</call>b"]


@given(st.text('<cal>/\\"{}x \n', max_size=40), st.lists(st.integers(0, 90), max_size=8))
def test_an_argument_may_hold_anything_also_marks(text: str, cuts: list[int]) -> None:
    call = Call("write_file", {"text": f"{text}</call>{text}<call>"})
    written = json.dumps({"name": call.name, "arguments": call.arguments})
    assert read(tagged(), f"a<call>{written}</call>b<call>{written}</call>", cuts) == ["a", call, "b", call]
    assert read(tagged(), f"a<call>{written}", cuts) == ["a", call]


def test_what_follows_a_string_without_an_end_is_not_lost() -> None:
    broken = '<call>{"name": "x}</call>'
    whole = f"<call>{WRITTEN}</call>"
    assert read(tagged(), f"a{broken}b{whole}c{broken}", [5]) == [f"a{broken}b", READ, f"c{broken}"]
    assert read(tagged(), broken * 3000, []) == [broken * 3000]


def test_each_character_is_looked_at_once() -> None:
    body, text = _Body("</call>"), '{"a": "'
    for _ in range(1000):
        text += "x</call>"
        assert body.end(text) is None
        assert body._scanned == len(text)


def test_a_last_call_may_lack_its_mark() -> None:
    assert read(tagged(), f"<call>{WRITTEN}", []) == [READ]
    parser = TaggedParser("[CALLS]", "", parse_json_calls)
    assert read(parser, f"Ok[CALLS] [{WRITTEN}, " + '{"name": "list_files", "arguments": {}}]', []) == [
        "Ok",
        READ,
        LIST,
    ]


@given(st.lists(st.integers(0, 60), max_size=6))
def test_an_answer_that_is_a_call(cuts: list[int]) -> None:
    written = '\n{"name": "read_file", "parameters": {"path": "a.py"}}'
    assert read(BareJsonParser(partial(parse_json_calls, arguments="parameters")), written, cuts) == [READ]
    assert read(BareJsonParser(parse_json_calls), "{x} is a set", cuts) == ["{x} is a set"]
    assert read(BareJsonParser(parse_json_calls), " no call: {}", cuts) == [" no call: {}"]


def test_text_without_a_call_streams() -> None:
    parser = BareJsonParser(parse_json_calls)
    assert (parser.push("\n "), parser.push("It"), parser.push(" is"), parser.end()) == (
        [],
        ["\n It"],
        [" is"],
        [],
    )


def test_functions_have_a_name_and_a_schema() -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = [{"function": {"name": "a", "parameters": schema}}, {"function": {"name": "b"}}]
    assert name_and_parameters(tools) == [("a", schema), ("b", {"type": "object", "properties": {}})]
