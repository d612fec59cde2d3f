"""Tool calls of Mistral's models: a list after a mark."""

from __future__ import annotations

from typing import ClassVar

from localspec.output.tool_format import MarkedToolFormat

MARK = "[TOOL_CALLS]"


class Mistral(MarkedToolFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`, to the end of the answer: Mistral and Nemo."""

    marks: ClassVar[tuple[str, ...]] = (MARK,)
    opens: ClassVar[str] = MARK
    closes: ClassVar[str] = ""
    between: ClassVar[str | None] = None

    def body(self, call: str) -> str:
        """Return a list of calls."""
        return f'" [" ({call}) (", " ({call}))* "]"'
