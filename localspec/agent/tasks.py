"""Tasks to measure an agent with: files, what to do, and a check."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SECONDS = 60


@dataclass(frozen=True, slots=True)
class Task:
    """What an agent is to do in a folder of `files`, and a Python program that fails unless it did."""

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
        """Tell whether the task was done in `folder`, by an agent whose last words are `answer`."""
        found = subprocess.run(
            [sys.executable, "-c", self.check],
            cwd=folder,
            env={**os.environ, "ANSWER": answer, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            timeout=SECONDS,
        )
        return found.returncode == 0


def read(path: Path) -> list[Task]:
    """Return the tasks of a suite."""
    found = tomllib.loads(path.read_text("utf-8"))["task"]
    return [Task(one["name"], one["task"], one["files"], one["check"]) for one in found]
