"""The process of an export: it reads one request, and replies with its progress until it is done."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from localspec import plugins
from localspec.build.context import Workspace
from localspec.build.exporting import END, STEP, parent_of
from localspec.build.pipeline import card
from localspec.children import replies_on_stdout
from localspec.drafting.build_step import Artifact, BuildStep
from localspec.errors import LocalspecError
from localspec.library import Library, Progress


class _Reports:
    """Progress that is reported to the parent process."""

    def __init__(self, reply: Callable[[dict[str, Any]], None]) -> None:
        self._reply = reply

    @contextmanager
    def step(self, title: str, total: int | None = None, unit: str = "") -> Iterator[None]:
        self._reply({"report": STEP, "arguments": [title, total, unit]})
        try:
            yield
        finally:
            self._reply({"report": END})

    def advance(self, count: int = 1) -> None:
        self._reply({"report": "advance", "arguments": [count]})

    def say(self, line: str) -> None:
        self._reply({"report": "say", "arguments": [line]})


def _run(name: str, folder: str, text: str, into: Path, progress: Progress) -> None:
    """Run the export step `text`."""
    library = Library()
    model = library.find(name) or library.resolve(folder, progress)
    context = Workspace(model, parent_of(model, library), [], library, progress, into)
    step: BuildStep = plugins.parse("steps", text).make(context)
    step.run(Artifact(model.folder, card(model) or {"precision": model.manifest.precision}), into)


def main() -> None:
    """Do the export that stdin asks for."""
    with replies_on_stdout() as reply:
        name, folder, text, into = json.loads(sys.stdin.readline())
        try:
            _run(name, folder, text, Path(into), _Reports(reply))
            reply({})
        except LocalspecError as error:
            reply({"kind": type(error).__name__, "error": error.message, "hint": error.hint})


if __name__ == "__main__":
    main()
