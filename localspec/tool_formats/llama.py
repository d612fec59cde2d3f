"""Tool calls of Llama 3: an answer that is one JSON object."""

from __future__ import annotations

from typing import ClassVar

from localspec.output.tool_format import BareToolFormat


class Llama(BareToolFormat):
    """`{"name": ..., "parameters": {...}}` alone in the answer: Llama 3.1, 3.2 and 3.3."""

    marks: ClassVar[tuple[str, ...]] = ("<|python_tag|>", "Environment: ipython")
    arguments: ClassVar[str] = "parameters"
