"""Calibration prompts of a build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from localspec.disk import given
from localspec.errors import BadValue

if TYPE_CHECKING:
    from localspec.build import CalibrationPrompt


def read_prompts(file: Path | None) -> list[CalibrationPrompt]:
    """Return the prompts in a file of plain lines or JSON lines; without a file, those of `quick`."""
    from localspec.bench import suites
    from localspec.build import CalibrationPrompt

    if file is None:
        return from_suite(suites.QUICK)
    lines = [line for line in given.read_text(file).splitlines() if line.strip()]
    if not lines:
        raise BadValue(f"`{file}` has no prompts", "Write one a line")
    if lines[0].lstrip().startswith("{"):
        return from_suite(str(file))
    return [CalibrationPrompt(file.stem, line) for line in lines]


def from_suite(name: str) -> list[CalibrationPrompt]:
    """Return the first turns of a suite's prompts."""
    from localspec.bench import suites
    from localspec.build import CalibrationPrompt

    return [CalibrationPrompt(prompt.kind, prompt.turns[0]) for prompt in suites.load(name)]
