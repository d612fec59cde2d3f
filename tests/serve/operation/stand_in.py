"""A program on the path that notes how it was started."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

PROGRAM = """#!{python}
import json, os, signal, sys
with open({notes!r}, "w") as notes:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, notes)
if {waits}:
    print("ready", flush=True)
    signal.pause()
sys.exit({code})
"""


class StandIn:
    """A program called `name` in a folder, which ends with an exit code or waits for a signal."""

    def __init__(self, folder: Path, name: str, code: int = 0, *, waits: bool = False) -> None:
        self._notes = folder / f"{name}.json"
        program = folder / name
        program.write_text(
            PROGRAM.format(python=sys.executable, notes=str(self._notes), waits=waits, code=code)
        )
        program.chmod(0o755)
        self.path = f"{folder}{os.pathsep}{os.environ['PATH']}"

    @property
    def started(self) -> dict[str, Any]:
        """Its arguments and its environment."""
        found: dict[str, Any] = json.loads(self._notes.read_text())
        return found
