"""Grammars that constrain an answer, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import letters
import pytest

from localspec import plugins
from localspec.errors import BadValue, PromptError
from localspec.output import grammar
from localspec.output.grammar import Grammar
from localspec.output.tool_calls import Call
from localspec.tools import ALTERNATIVES, SUBSTRING_OF

TOKENIZER = letters.tokenizer()
END = TOKENIZER.token_to_id("<|end|>")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "tell", "parameters": PERSON}},
    {"type": "function", "function": {"name": "list"}},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return grammar.grammar_tokenizer(TOKENIZER, TOKENIZER.get_vocab_size() + 3, (END,))


def encoded(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def first_wrong(found: Grammar, text: str) -> int | None:
    """Return the position of the first token of `text`, or of its end, that is not allowed, or None."""
    tokens = [*encoded(text), END]
    for at, token in enumerate(tokens):
        mask = found.allowed(tokens[:at])
        assert mask is not None
        if not mask[token]:
            return at
    return None


def schema(tokenizer: Any, value: dict[str, Any] = PERSON) -> Grammar:
    return Grammar(grammar.from_schema(value, "person.json"), tokenizer)


def test_an_answer_that_the_grammar_forbids_is_refused_and_the_next_one_is_followed(tokenizer: Any) -> None:
    found = schema(tokenizer)
    for begun, forbidden in (('{"name": "Ada"', "}"), ('{"name"', "x"), ("", "no")):
        with pytest.raises(PromptError, match=f"forbids token .* after {len(encoded(begun))} others"):
            found.allowed(encoded(begun + forbidden))
        with pytest.raises(PromptError, match="forbids token"):
            found.forced(encoded(begun + forbidden))
        assert found.allowed(encoded(begun)) is not None
    assert first_wrong(found, '{"name": "Ada", "age": 36}') is None


def test_only_tokens_that_fit_the_schema_are_allowed(tokenizer: Any) -> None:
    found = schema(tokenizer)
    assert first_wrong(found, '{"name": "Ada", "age": 36}') is None
    assert first_wrong(found, '{"name": "Ada"}') == len(encoded('{"name": "Ada"'))
    assert first_wrong(found, '{"age') == len(encoded('{"'))
    assert first_wrong(found, '{"name": "Ada", "age": x') == len(encoded('{"name": "Ada", "age": '))
    assert first_wrong(found, "Ada") == 0


def test_logits_may_be_wider_than_the_tokenizer(tokenizer: Any) -> None:
    mask = schema(tokenizer).allowed([])
    assert mask is not None
    assert mask.shape == (TOKENIZER.get_vocab_size() + 3,)
    assert not mask[-3:].any()


def test_answers_are_followed_in_any_order(tokenizer: Any) -> None:
    found, fresh = schema(tokenizer), schema(tokenizer)
    texts = ['{"name": "A', '{"name": "Ada", "age', '{"name": "Bo', '{"', '{"name": "Bo", "age": 3', ""]
    for text in [*texts, *reversed(texts)]:
        fresh = schema(tokenizer)
        assert (found.allowed(encoded(text)) == fresh.allowed(encoded(text))).all()  # type: ignore[union-attr]
        assert list(found.forced(encoded(text))) == list(fresh.forced(encoded(text)))


def test_forced_tokens_are_returned(tokenizer: Any) -> None:
    found = schema(tokenizer)
    tokens: list[int] = []
    forced = list(found.forced(tokens))
    assert TOKENIZER.decode(forced).startswith('{"name":')
    tokens = encoded('{"name": "Ada"')
    assert TOKENIZER.decode(list(found.forced(tokens))).startswith(', "age":')
    assert list(found.forced(encoded('{"name": "A'))) == []


def test_after_its_end_an_answer_is_free(tokenizer: Any) -> None:
    found = schema(tokenizer)
    whole = [*encoded('{"name": "Ada", "age": 36}'), END]
    assert found.allowed(whole) is None
    assert found.allowed([*whole, 5, 6]) is None
    assert list(found.forced(whole)) == []
    mask = found.allowed(whole[:-1])
    assert mask is not None
    assert list(mask.nonzero()[0]) == [END]


def test_after_a_complete_value_only_the_end_is_allowed(tokenizer: Any) -> None:
    found = schema(tokenizer, {"enum": ["yes", "no"]})
    mask = found.allowed(encoded('"yes"'))
    assert mask is not None
    assert list(mask.nonzero()[0]) == [END]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "it is not an object"),
        ("text", "it is not an object"),
        ({"type": "objekt"}, "objekt"),
        ({"properties": 3}, ""),
        ({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, ""),
    ],
)
def test_a_wrong_schema_is_refused(value: Any, said: str) -> None:
    with pytest.raises(BadValue, match="`person.json` is not a JSON schema") as caught:
        grammar.from_schema(value, "person.json")
    assert said in caught.value.message
    assert caught.value.hint


LARGE = 2**53


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"minimum": LARGE + 1, "maximum": LARGE + 3}, [LARGE + 2], [LARGE, LARGE + 1, LARGE + 4]),
        ({"exclusiveMinimum": LARGE}, [LARGE + 2], [LARGE, 5]),
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, [0, 5, -5, 2**62], [2**63, -(2**63) - 1]),
        ({"maximum": 2**64 - 1}, [5, 2**62], [2**64]),
        ({"maximum": 10**400}, [5], []),
        ({"maximum": -LARGE - 1}, [-LARGE - 2], [-LARGE, -LARGE - 1, 5]),
        ({"minimum": LARGE}, [LARGE, LARGE + 1], [LARGE - 1]),
    ],
)
def test_bounds_beyond_what_floats_hold_are_never_overstepped(
    tokenizer: Any, schema: dict[str, Any], right: list[int], wrong: list[int]
) -> None:
    given = json.dumps(schema)
    found = Grammar(grammar.from_schema({"type": "integer", **schema}, "s"), tokenizer)
    assert [number for number in right if first_wrong(found, str(number)) is not None] == []
    assert [number for number in wrong if first_wrong(found, str(number)) is None] == []
    assert json.dumps(schema) == given


NAMED = {"id": {"enum": [LARGE + 1, 2**64 + 1, "x"]}, "n": {"type": "integer"}, "k": {"const": -LARGE - 1}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"const": LARGE + 1}, [f"{LARGE + 1}"], [f"{LARGE}", f"{LARGE + 2}", f"{LARGE + 1}0"]),
        ({"enum": [LARGE + 1, 2**64 + 1, 5]}, [f"{2**64 + 1}", "5"], [f"{2**64}", "6", f"{LARGE}"]),
        ({"type": "integer", "enum": [LARGE + 1, "x", 1.5]}, [f"{LARGE + 1}"], ['"x"', "1.5"]),
        ({"anyOf": [{"const": LARGE + 1}, {"type": "null"}]}, [f"{LARGE + 1}", "null"], [f"{LARGE}", "1"]),
        ({"const": [LARGE + 1, {"a b": -LARGE - 1}]}, [f'[{LARGE + 1}, {{"a b": {-LARGE - 1}}}]'], ["[]"]),
        (
            {"type": "object", "properties": NAMED},
            [
                "{}",
                f'{{"id": {LARGE + 1}}}',
                f'{{"id": "x", "n": 5, "k": {-LARGE - 1}}}',
                f'{{"k": {-LARGE - 1}}}',
            ],
            [f'{{"id": {LARGE}}}', '{"n": 5, "k": 1}', f'{{"k": {-LARGE - 1}, "n": 5}}', "{,}"],
        ),
        (
            {"type": "object", "properties": NAMED, "required": ["n", "k"], "additionalProperties": False},
            [f'{{"n": 5, "k": {-LARGE - 1}}}', f'{{"id": "x", "n": 5, "k": {-LARGE - 1}}}'],
            ["{}", '{"n": 5}', f'{{"k": {-LARGE - 1}}}'],
        ),
    ],
)
def test_constants_beyond_what_floats_hold_are_exact(
    tokenizer: Any, schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    found = Grammar(grammar.from_schema(schema, "s"), tokenizer)
    assert [text for text in right if first_wrong(found, text) is not None] == []
    assert [text for text in wrong if first_wrong(found, text) is None] == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"items": {"const": LARGE + 1}}, "`items/const` has 9007199254740993, beyond 2^53"),
        ({"type": "string", "const": LARGE + 1}, "`"),
        (
            {"properties": {"a": {"enum": [1, {"b": -LARGE - 1}]}}},
            "`properties/a/enum` has -9007199254740993",
        ),
        ({"type": "integer", "minimum": 2**64}, "`minimum`: "),
        ({"type": "integer", "multipleOf": LARGE + 1}, "`multipleOf`: "),
        ({"properties": {"a": {"items": {"type": "objekt"}}}}, "`properties/a/items/type`: Invalid type"),
        ({"type": "string", "pattern": "(?=x)"}, "`pattern`: regex parse error: look-around"),
        ({"type": "string", "format": "strange"}, "`format`: Unknown format"),
        ({"anyOf": [{"type": "null"}, {"uniqueItems": True}]}, "`anyOf/1/uniqueItems`: "),
        ({"properties": {"a": {"$ref": "#/$defs/no"}}, "$defs": {"A": {}}}, "`properties/a/$ref`: "),
        ({"$defs": {"A": {"not": {}}}, "$ref": "#/$defs/A"}, "`$defs/A/not`: "),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "`minLength`: "),
        ({"properties": {"type": {"type": "objekt"}}}, "`properties/type/type`: "),
        ({"properties": 3}, "`properties`: "),
    ],
)
def test_a_refusal_names_the_keyword(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(BadValue) as caught:
        grammar.from_schema(schema, "s")
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "is not JSON"), ("[1]", "is not an object"), ("\xff", "is not UTF-8"), (None, "No such file")],
)
def test_a_file_without_a_schema_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    path = tmp_path / "person.json"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(BadValue, match=said) as caught:
        grammar.read_schema(path)
    assert str(path) in caught.value.message


def test_grammars_are_read_in_lark_and_gbnf(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "answer.gbnf"
    for text in ('start: "yes" | "no"\n', 'root ::= "yes" | "no"\n'):
        path.write_text(text)
        found = Grammar(grammar.read_grammar(path), tokenizer)
        assert first_wrong(found, "yes") is None
        assert first_wrong(found, "maybe") == 0


@pytest.mark.parametrize("text", ["yes or no", "", "root ::= (", "start: missing"])
def test_a_wrong_grammar_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="`g` is no"):
        grammar.from_text(text, "g")


WRITTEN = {
    "qwen": '<tool_call>\n{"name": "tell", "arguments": {"name": "Ada", "age": 3}}\n</tool_call>',
    "llama": '{"name": "tell", "parameters": {"name": "Ada", "age": 3}}',
    "mistral": '[TOOL_CALLS] [{"name": "tell", "arguments": {"name": "Ada", "age": 3}}]',
    "json": '{"name": "tell", "arguments": {"name": "Ada", "age": 3}}',
}
NAMES = plugins.names("tool_formats")


def tool_format(name: str) -> Any:
    return plugins.part("tool_formats", name).made_by()


def made(name: str, tokenizer: Any, *, must: bool, inside: bool = False) -> Grammar:
    return Grammar(
        tool_format(name).grammar(TOOLS, TOKENIZER.token_to_id, must=must, inside=inside), tokenizer
    )


def test_every_tool_format_is_tested_here() -> None:
    assert set(WRITTEN) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("must", [False, True])
def test_only_complete_calls_of_known_tools_are_allowed(tokenizer: Any, name: str, must: bool) -> None:
    found, text = made(name, tokenizer, must=must), WRITTEN[name]
    assert first_wrong(found, text) is None
    assert first_wrong(found, text.replace("tell", "sell")) is not None
    assert first_wrong(found, text.replace("3", '"3"')) is not None
    assert first_wrong(found, text.replace(', "age": 3', "")) is not None
    assert first_wrong(found, text[:-1]) is not None


@pytest.mark.parametrize("name", NAMES)
def test_text_is_allowed_unless_a_call_must_come(tokenizer: Any, name: str) -> None:
    assert first_wrong(made(name, tokenizer, must=False), "It is {3} `now`.\nYes") is None
    assert first_wrong(made(name, tokenizer, must=True), "It is 3") == 0
    for broken in ('{"name": "tell"', "```json\n{}", " \n```"):
        assert first_wrong(made(name, tokenizer, must=False), broken) is not None


@pytest.mark.parametrize("name", NAMES)
def test_reasoning_may_come_first(tokenizer: Any, name: str) -> None:
    for must in (False, True):
        found = made(name, tokenizer, must=must)
        assert first_wrong(found, f"<think>Hm: {{}}.</think>\n\n{WRITTEN[name]}") is None
        assert first_wrong(found, f"<think>Hm.{WRITTEN[name]}") is not None
        found = made(name, tokenizer, must=must, inside=True)
        assert first_wrong(found, f"Hm.</think>{WRITTEN[name]}") is None


@pytest.mark.parametrize("name", ["qwen", "mistral"])
def test_text_may_come_before_calls(tokenizer: Any, name: str) -> None:
    found = made(name, tokenizer, must=False)
    assert first_wrong(found, f"I will.\n{WRITTEN[name]}") is None
    assert first_wrong(found, f"I will.\n{WRITTEN[name]} And more") is not None


TEXT = "import a\n\nif a:\n    say('1')\n" + "long " * 80 + "line\n"


@pytest.mark.parametrize(
    ("old", "fits"),
    [
        *(("import a", True), ("import a\n\nif a:\n", True), ("    say('1')", True), ("say('1')\n", True)),
        *(("", True), ("long long", True), ("long line\n", True)),
        *(("import", False), ("say", False), ("import b", False), ("if a:\nsay('1')", False), ("a", False)),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_substring_is_quoted_in_whole_lines(tokenizer: Any, name: str, old: str, fits: bool) -> None:
    """A line is quoted whole, with or without its indent; of a long line, whole words."""
    arguments = {"path": {"const": "a.py"}, "old": {SUBSTRING_OF: TEXT}, "new": {"type": "string"}}
    edit_tool = {"name": "edit", "parameters": {"type": "object", ALTERNATIVES: [{"properties": arguments}]}}
    source = tool_format(name).grammar([{"function": edit_tool}], TOKENIZER.token_to_id, must=True)
    arguments = json.dumps({"path": "a.py", "old": old, "new": "x"})
    text = WRITTEN[name].replace("tell", "edit").replace('{"name": "Ada", "age": 3}', arguments)
    assert (first_wrong(Grammar(source, tokenizer), text) is None) is fits
    assert first_wrong(Grammar(source, tokenizer), text.replace("a.py", "b.py")) is not None


def test_qwen_may_call_several_times(tokenizer: Any) -> None:
    text = f"{WRITTEN['qwen']}\n<tool_call>\n" + '{"name": "list", "arguments": {}}\n</tool_call>'
    assert first_wrong(made("qwen", tokenizer, must=False), text) is None
    assert first_wrong(made("qwen", tokenizer, must=True), text) is not None  # one at a time
    parser = tool_format("qwen").parser()
    found = [*parser.push(text), *parser.end()]
    assert found == [Call("tell", {"name": "Ada", "age": 3}), "\n", Call("list", {})]


@pytest.mark.parametrize("name", NAMES)
def test_a_format_parses_its_own_calls(name: str) -> None:
    parser = tool_format(name).parser()
    assert [*parser.push(WRITTEN[name]), *parser.end()] == [Call("tell", {"name": "Ada", "age": 3})]


def test_a_template_without_tools_gets_them_in_the_prompt() -> None:
    def template(messages: list[dict[str, Any]], tools: Any = None) -> str:
        assert tools is None
        return json.dumps(messages)

    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "list", "arguments": {}}}]},
        {"role": "tool", "name": "list", "content": "Ada"},
    ]
    found = json.loads(tool_format("json").render(template, messages, TOOLS))
    assert [one["role"] for one in found] == ["system", "user", "assistant", "user"]
    assert found[0]["content"].startswith("Be brief.\n\n")
    assert '"name": "tell"' in found[0]["content"]
    assert found[2]["content"] == '{"name": "list", "arguments": {}}'
    assert found[3]["content"] == "`list` returned:\nAda"
