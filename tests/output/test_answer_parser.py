from __future__ import annotations

import pytest

from localspec import plugins
from localspec.output.answer_parser import AnswerParser, Part
from localspec.output.reasoning import OutputPiece, ReasoningParser
from localspec.output.tool_calls import Call

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "<think>"}}\n</tool_call>'


def parsed(text: str, size: int, *, thinks: bool = True, calls: bool = True) -> list[Part]:
    """Return the parts of a text in pieces of one size; neighbours of a kind are joined."""
    tool_format = plugins.part("tool_formats", "qwen").made_by()
    parser = AnswerParser(ReasoningParser() if thinks else None, tool_format.parser() if calls else None)
    parts = [part for at in range(0, len(text), size) for part in parser.push(text[at : at + size])]
    joined: list[Part] = []
    for part in [*parts, *parser.end()]:
        last = joined[-1] if joined else None
        if isinstance(part, OutputPiece) and isinstance(last, OutputPiece) and last[1] == part[1]:
            joined[-1] = OutputPiece(last.text + part.text, part.is_reasoning)
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_reasoning_text_and_calls_are_told_apart(size: int) -> None:
    call = Call("look", {"at": "<think>"})
    assert parsed(f"<think>Hm.</think>So: {CALL}", size) == [
        OutputPiece("Hm.", True),
        OutputPiece("So: "),
        call,
    ]
    text = f"<think>Hm.</think>{CALL}"
    assert parsed(text, size, thinks=False) == [OutputPiece("<think>Hm.</think>"), call]
    assert parsed(text, size, calls=False) == [OutputPiece("Hm.", True), OutputPiece(CALL)]
    assert parsed(text, size, thinks=False, calls=False) == [OutputPiece(text)]
    assert parsed("", size) == []
