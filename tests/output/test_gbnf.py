"""GBNF as llama.cpp reads it: what its own sampler accepts of each text, found with llama.cpp 0.3.36's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from localspec.errors import BadValue
from localspec.output import grammar
from localspec.output.gbnf import GbnfError, to_lark

JSON = r"""
# a comment, and blank lines

root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws (
  value   # inner
  ("," ws value)*
)? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""

ACCEPTED = [  # a grammar, the texts that llama.cpp accepts, and those that it does not
    (r'root ::= "\u00e9"', ["\xe9"], ["e"]),
    (r'root ::= "\U0001F600"', ["\U0001f600"], []),
    (r'root ::= "\x41\t\r\n\\"', ["A\t\r\n\\"], []),
    (r"root ::= [a\-c]", ["a", "-", "c"], ["b"]),
    (r"root ::= [a-]", ["-", "a"], ["b"]),
    (r"root ::= [-a]", ["-"], []),
    (r"root ::= [\]a\[]", ["]", "a", "["], ["b"]),
    (r"root ::= [^a]", ["b", "\n", "\xe9"], ["a"]),
    (r"root ::= [a-\u00e9]", ["\xe9", "z"], ["A"]),
    (r"root ::= [&&~~||]", ["&", "~", "|"], ["a"]),
    (r"root ::= [+--]", ["+", "-", ","], ["a"]),
    (r'root ::= "/" [/]', ["//"], []),
    ("root ::= .", ["x", "\n", "\xe9"], ["xx"]),
    ('root ::= start\nstart ::= x\nx ::= root-2\nroot-2 ::= "x"', ["x"], ["y"]),
    ('root ::= fooBar foo-bar foobar\nfooBar ::= "1"\nfoo-bar ::= "2"\nfoobar ::= "3"', ["123"], ["132"]),
    ('root ::= "a"{2,3}', ["aa", "aaa"], ["a", "aaaa"]),
    ('root ::= "a"{2} "b"{1,} "c"{0}', ["aab", "aabb"], ["aa", "aabc"]),
    ('root ::= ("a" |\n "b")', ["a", "b"], ["ab"]),
    ('root ::= "a" |\n "b"', ["a", "b"], ["ab"]),
    ('root ::= "a" | | "b"', ["", "a", "b"], ["ab"]),
    ('root ::= ""', [""], ["a"]),
    ('root ::= "a" # c | "b"\n', ["a"], ["b"]),
    ('root ::= "a\n"', ["a\n"], []),
    ('root ::= "a"\r\nx ::= "b"\r\n', ["a"], []),
    ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
    ('root::="a"?"b"+"c"*', ["b", "abbcc"], ["a"]),
    ('root ::= ("a" ("b" ("c")?)?)?', ["", "a", "ab", "abc"], ["ac"]),
    ('root ::= x+ "end"\nx ::= [a-z]', ["fooend"], ["end", "fooen"]),
    ('root ::= x "end" y\nx ::= [a-z]+\ny ::= "" | "(" y ")"', ["fooend", "fooend(())"], ["foo", "fooend("]),
    ('root ::= a | b\na ::= "x" a | ""\nb ::= "y"', ["", "xx", "y"], ["xy"]),
    ('root ::= list\nlist ::= "[" (list ("," list)*)? "]"', ["[]", "[[],[[]]]"], ["[,]", "["]),
    ('root ::= "\u65e5\u672c" [\u3041-\u3093]+', ["\u65e5\u672c\u3042"], ["\u65e5\u672c"]),
    (JSON, ['{"a": 1}', r'{"a":[1,{"b":"\u00e9"},true]}', "{}"], ['{"a"}', '{"a"  :1}']),
]
REFUSED = [  # with the line of the fault; llama.cpp refuses them, too, or crashes
    (r'root ::= "a"' + "\n" + r'x ::= "\q"', "line 2: unknown escape `\\q`"),
    (r'root ::= "\u00g9"', "line 1: `\\u` needs 4 hexadecimal digits"),
    (r'root ::= "\uD800"', "line 1: `\\uD800` is no character"),
    ("root ::= [0-9]{,3}", "line 1: expected a repetition"),
    ('root ::= "a"{3,2}', "line 1: `{3,2}` allows no number of times"),
    ('\n\nroot ::= nope "a"', "line 3: there is no rule `nope`"),
    ('root ::= (\n\n"a" nope)', "line 3: there is no rule `nope`"),
    ('x ::= "a"', "there is no rule `root`"),
    ("root ::= 'a'", "line 1: expected the end of the line, found `'`"),
    ('\nroot ::= "a', "line 2: the text ends in this literal"),
    ("\nroot ::= [a", "line 2: the text ends in this literal or class"),
    ('root ::= (\n"a"', "line 1: the text ends in this group"),
    ('root = "a"', "line 1: expected `::=` after `root`"),
    ("root ::= [z-a]", "line 1: the range `z-a` is empty"),
    ("root ::= *", "line 1: expected the end of the line, found `*`"),
    ("root ::= " + "(" * 101, "line 1: more than 100 groups in each other"),
    ('!root ::= "a"', "line 1: expected the name of a rule"),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return LLTokenizer("byte")


def accepts(tokenizer: Any, lark: str, text: str) -> bool:
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark))
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    read = matcher.try_consume_tokens(tokens)
    return read == len(tokens) and bool(matcher.is_accepting())


@pytest.mark.parametrize(("text", "accepted", "rejected"), ACCEPTED)
def test_a_grammar_accepts_what_llama_cpp_accepts(
    tokenizer: Any, text: str, accepted: list[str], rejected: list[str]
) -> None:
    lark = to_lark(text)
    assert [each for each in accepted if not accepts(tokenizer, lark, each)] == []
    assert [each for each in rejected if accepts(tokenizer, lark, each)] == []


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_a_fault_is_named_with_the_line_of_the_users_text(text: str, said: str) -> None:
    with pytest.raises(GbnfError) as caught:
        to_lark(text)
    assert said in str(caught.value)


def test_special_tokens_of_a_model(tokenizer: Any) -> None:
    assert accepts(tokenizer, to_lark('root ::= "a" <[98]> | <[5]>'), "ab")
    assert "<|im_end|>" in to_lark("root ::= [a-z]* <|im_end|>")


def test_a_faulty_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.gbnf"
    file.write_text('root ::= "a"\nx ::= y\n', "utf-8")
    with pytest.raises(BadValue, match=r"a\.gbnf` is not a GBNF grammar: line 2: there is no rule `y`"):
        grammar.read_grammar(file)


def test_recursion_alone_makes_rules() -> None:
    lark = to_lark(JSON)
    assert lark.count("\nr") == 4  # root, value, object, array
    assert lark.count("\nT") == 3
