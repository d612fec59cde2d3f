"""Calls as Qwen and the Hermes models write them: JSON between two tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from localspec.output import grammar
from localspec.output.tool_calls import Reader, Tagged, ToolFormat, in_json

OPENS, CLOSES = "<tool_call>", "</tool_call>"


class Qwen(ToolFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once or more: Qwen 2.5 and 3, Hermes."""

    signs: ClassVar[tuple[str, ...]] = (OPENS,)

    def grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        token: Callable[[str], int | None],
        *,
        must: bool,
        inside: bool = False,
    ) -> str:
        """Return text, and calls between tags after it."""
        call = grammar.lark_call(tools)
        return grammar.lark_calls(
            opens=(OPENS, token(OPENS)),
            body=f'"\\n" ({call}) "\\n"',
            closes=(CLOSES, token(CLOSES)),
            between="\n",
            thought=grammar.lark_thought(token, inside),
            must=must,
        )

    def reader(self) -> Reader:
        """Return a reader of tags."""
        return Tagged(OPENS, CLOSES, in_json)
