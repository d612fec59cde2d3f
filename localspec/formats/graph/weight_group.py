"""How many columns of a graph's compressed matrices share a scale, as the graph itself says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

TAIL = 65536  # bytes at the end of a graph, where its facts are
FACT = re.compile(rb'<group_size value="(\d+)" ?/>')  # NNCF's name, under its own heading


def note(model: Any, group: int) -> None:
    """Write the smallest group of its matrices into an openvino.Model."""
    model.set_rt_info(group, ["localspec", "group_size"])


def noted(graph: Path) -> int | None:
    """Return the group that a graph's file notes, None if it notes none or has a scale for each row."""
    try:
        with graph.open("rb") as file:
            file.seek(max(graph.stat().st_size - TAIL, 0))
            found = FACT.search(file.read())
    except OSError:
        return None
    return int(found[1]) or None if found else None
