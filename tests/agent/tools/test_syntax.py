"""Whether files parse, and texts that a model has escaped twice."""

from __future__ import annotations

import shutil

import pytest

from localspec.agent.tools.syntax import fault, known, unescaped


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def f(:\n"),
        ("a.py", "return 1\n"),
        ("a.PY", "x = '\n"),
        ("a.py", "x = 1\0\n"),
        ("a.json", "{'a': 1}"),
        ("a.json", "[" * 100_000),
        ("a.toml", "a = "),
    ],
)
def test_a_fault_is_found(name: str, text: str) -> None:
    assert fault(name, text)
    assert known(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "x = '\\d'\n"),
        ("a.json", '{"a": [1]}'),
        ("a.toml", "a = 1"),
        ("tsconfig.json", '{\n  // a comment\n  "a": "// none", /* b */\n  "c": [1, 2,],\n}'),
        ("App.js", "export default () => <p>Hello</p>"),
        ("a.txt", "def f(:"),
        ("a", "{"),
    ],
)
def test_a_file_that_parses_has_none(name: str, text: str) -> None:
    assert fault(name, text) is None


def test_a_fault_tells_the_line() -> None:
    assert fault("a.py", "x = 1\nif x\n") == "line 2: expected ':': if x"


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("a.sh", "if then\n", "echo a\n"),
        ("a.js", "let a = ;", "import x from 'y'\nawait x()\n"),
        ("a.cjs", "let a = (", "const a = require('b')\n"),
        ("a.rb", "puts (", "puts 1\n"),
        ("a.php", "<?php echo (", "<?php echo 1;"),
    ],
)
def test_a_program_checks_other_languages_if_it_is_here(name: str, wrong: str, right: str) -> None:
    program = {"sh": "bash", "js": "node", "cjs": "node", "rb": "ruby", "php": "php"}[name.partition(".")[2]]
    assert known(name) == (shutil.which(program) is not None)
    assert bool(fault(name, wrong)) == known(name)
    assert fault(name, right) is None


@pytest.mark.parametrize(
    ("name", "text", "meant"),
    [
        ("a.py", 'def f():\\n    return \\"a\\"\\n', 'def f():\n    return "a"\n'),
        ("todo.md", "- one\\n- two", "- one\n- two"),
        ("a.py", 'print("a\\nb")', 'print("a\\nb")'),  # parses as it is
        ("a.json", '{"a": "b\\nc"}', '{"a": "b\\nc"}'),
        ("a.py", "x = 1\nprint('\\n')", "x = 1\nprint('\\n')"),  # has real line ends
        ("a.txt", "one", "one"),
    ],
)
def test_line_ends_that_were_escaped_twice(name: str, text: str, meant: str) -> None:
    assert unescaped(name, text) == meant


def test_an_edit_is_judged_by_the_file_that_it_makes() -> None:
    def whole(text: str) -> str:
        return f"def f():\n    {text}\n"

    assert unescaped("a.py", "x = 1\\n    return x", whole) == "x = 1\n    return x"
    assert unescaped("a.py", "return '\\n'", whole) == "return '\\n'"
