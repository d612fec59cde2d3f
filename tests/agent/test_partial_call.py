"""The tool and the argument of a call that is still being written, and answers that were cut."""

from __future__ import annotations

import pytest

from localspec.agent.partial_call import MAX_SHOWN, call_so_far, cut_answer

QWEN = '<tool_call>\n{"name": "edit_file", "arguments": {"path": "src/a.py", "old": "x'


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", ""),
        ('<tool_call>\n{"name": "edit', ""),
        (QWEN[: QWEN.index('",') + 1], "edit_file"),
        (QWEN[: QWEN.index("src") + 3], "edit_file(path='src')"),
        (QWEN, "edit_file(path='src/a.py')"),
        ('{"name": "read_file", "parameters": {"path": "a', "read_file(path='a')"),
        ('{"name": "read_file", "parameters": {"first": 12', "read_file(first=12)"),
        ('[TOOL_CALLS] [{"name": "x", "arguments": {"a": "b\\n"}', "x(a='b\\n')"),
        ('[TOOL_CALLS]read_file[ARGS]{"path": "b', "read_file(path='b')"),
        ('{"name": "a", "arguments": {}} {"name": "b", "arguments": {"c": "\\', "b(c='')"),
        (
            f'{{"name": "a", "arguments": {{"b": "{"c" * 99}',
            f"a(b='{'c' * MAX_SHOWN}\N{HORIZONTAL ELLIPSIS}')",
        ),
    ],
)
def test_the_tool_and_the_first_argument_are_known_early(text: str, known: str) -> None:
    assert call_so_far(text) == known


def test_an_answer_that_was_cut_is_its_text_so_far() -> None:
    text = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "One.\\nTwo'
    assert cut_answer(text, "final_answer", "answer") == "One.\nTwo"
    assert cut_answer(text, "edit_file", "answer") is None
    assert cut_answer(f'{text}"}}', "final_answer", "answer") is None  # it is whole
    assert cut_answer("One.", "final_answer", "answer") is None
