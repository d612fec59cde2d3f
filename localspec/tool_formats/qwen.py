"""Tool calls of Qwen and Hermes models: JSON between two tags."""

from __future__ import annotations

from typing import ClassVar

from localspec.output.tool_format import MarkedToolFormat

OPENS, CLOSES = "<tool_call>", "</tool_call>"


class Qwen(MarkedToolFormat):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once or more: Qwen 2.5 and 3, Hermes."""

    marks: ClassVar[tuple[str, ...]] = (OPENS,)
    opens: ClassVar[str] = OPENS
    closes: ClassVar[str] = CLOSES
    between: ClassVar[str | None] = "\n"

    def body(self, call: str) -> str:
        """Return a call on its own line."""
        return f'"\\n" ({call}) "\\n"'
