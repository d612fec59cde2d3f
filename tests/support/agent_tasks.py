"""Tasks that measure an agent: files, an instruction, and a check."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 60  # seconds, of a check


@dataclass(frozen=True, slots=True)
class Task:
    """An instruction for a folder of `files`, and a Python program that fails unless it was followed."""

    name: str
    text: str
    files: Mapping[str, str]
    check: str

    def lay_out(self, folder: Path) -> None:
        """Write the files into an empty folder."""
        for name, text in self.files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text.removeprefix("\n"), "utf-8")

    def solved(self, folder: Path, answer: str) -> bool:
        """Return whether the task was done in `folder`, by an agent whose last words are `answer`."""
        result = subprocess.run(
            [sys.executable, "-c", self.check],
            cwd=folder,
            env={**os.environ, "ANSWER": answer, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=TIMEOUT,
        )
        return result.returncode == 0


def read(path: Path) -> list[Task]:
    """Return the tasks of a suite."""
    tables = tomllib.loads(path.read_text("utf-8"))["task"]
    return [Task(table["name"], table["task"], table["files"], table["check"]) for table in tables]
