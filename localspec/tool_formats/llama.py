"""Calls as Llama 3 writes them: an answer that is one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from localspec.output import grammar
from localspec.output.tool_calls import Bare, Reader, ToolFormat, in_json

ARGUMENTS = "parameters"


class Llama(ToolFormat):
    """`{"name": ..., "parameters": {...}}` alone in the answer: Llama 3.1, 3.2 and 3.3."""

    signs: ClassVar[tuple[str, ...]] = ("<|python_tag|>", "Environment: ipython")

    def grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        token: Callable[[str], int | None],
        *,
        must: bool,
        inside: bool = False,
    ) -> str:
        """Return one call, or text that does not begin like one."""
        return grammar.lark_bare(
            grammar.lark_call(tools, ARGUMENTS), thought=grammar.lark_thought(token, inside), must=must
        )

    def reader(self) -> Reader:
        """Return a reader of a whole answer."""
        return Bare(partial(in_json, arguments=ARGUMENTS))
