"""Calls as Mistral's models write them: a list behind a mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from localspec.output import grammar
from localspec.output.tool_calls import Reader, Tagged, ToolFormat, in_json

MARK = "[TOOL_CALLS]"


class Mistral(ToolFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`, to the end of the answer: Mistral and Nemo."""

    signs: ClassVar[tuple[str, ...]] = (MARK,)

    def grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        token: Callable[[str], int | None],
        *,
        must: bool,
        inside: bool = False,
    ) -> str:
        """Return text, or a list of calls behind the mark."""
        call = grammar.lark_call(tools)
        return grammar.lark_calls(
            opens=(MARK, token(MARK)),
            body=f'" [" ({call}) (", " ({call}))* "]"',
            closes=("", None),
            between=None,
            thought=grammar.lark_thought(token, inside),
            must=must,
        )

    def reader(self) -> Reader:
        """Return a reader of what follows the mark."""
        return Tagged(MARK, "", in_json)
