"""Answers on a terminal: as Markdown, or as plain text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from typing import IO, TYPE_CHECKING, Protocol

from localspec.cli import console
from localspec.cli.talk.markdown import MarkdownWriter
from localspec.output.reasoning import OutputPiece, ReasoningParser
from localspec.output.visible import visible

if TYPE_CHECKING:
    from localspec.core.types import Step
    from localspec.runtime.answer import Answer
    from localspec.runtime.generation import Runtime


class Writer(Protocol):
    """Shows an answer as it streams."""

    thoughts: bool  # whether it shows the model's reasoning

    def push(self, piece: str, *, thought: bool = False) -> None:
        """Show a piece of the answer, or of the model's reasoning."""

    def end(self) -> None:
        """Show the rest, and leave the cursor on a new line."""


class PlainWriter:
    """Writes text as it comes; the model's reasoning goes to stderr, dimmed."""

    def __init__(
        self, out: IO[str], aside: IO[str] | None = None, *, safe: bool = False, dim: bool = False
    ) -> None:
        self._out = out
        self._aside = aside
        self.thoughts = aside is not None
        self._safe = safe
        self._dim, self._plain = (console.DIM, console.PLAIN) if dim else ("", "")
        self._thinking = False
        self._last = ""

    def push(self, piece: str, *, thought: bool = False) -> None:
        """Write a piece."""
        if thought:
            if self._aside is not None:
                self._aside.write(f"{self._dim}{visible(piece, self._last)}{self._plain}")
                self._last = piece[-1:]
                self._aside.flush()
                self._thinking = True
            return
        self._stop_thinking()
        self._out.write(visible(piece, self._last) if self._safe else piece)
        self._last = piece[-1:] or self._last
        self._out.flush()

    def end(self) -> None:
        """End the line."""
        self._stop_thinking()
        self._out.write("\n")
        self._out.flush()

    def _stop_thinking(self) -> None:
        if self._thinking and self._aside is not None:
            self._aside.write("\n\n")
            self._aside.flush()
        self._thinking = False


def stream(
    steps: Generator[Step, None, None],
    out: Writer,
    *,
    thinking: ReasoningParser | None,
    reading: Callable[[], str] = lambda: "Reading",
) -> Generator[Step, None, None]:
    """Show an answer on `out` and yield its steps; `thinking` tells reasoning from the answer.

    `reading` is shown until the first step. `steps` is closed and the writer ended even after an error.
    """
    waiting = console.Waiting()
    try:
        waiting.show(reading)
        with closing(steps):
            for step in steps:
                for part in thinking.push(step.text, step.marks) if thinking else [OutputPiece(step.text)]:
                    if part.is_reasoning and not out.thoughts:
                        waiting.show("Thinking")
                        continue
                    waiting.clear()
                    out.push(part.text, thought=part.is_reasoning)
                yield step
    finally:
        waiting.clear()
        for part in thinking.end() if thinking else []:
            out.push(part.text, thought=part.is_reasoning)
        out.end()


def prompt_progress(runtime: Runtime, answer: Answer) -> Callable[[], str]:
    """Return a function that tells how much of a prompt has been read."""
    target, total = runtime.target, answer.prompt_tokens

    def told() -> str:
        if total <= target.chunk:
            return "Reading"
        return f"Reading {min(target.chunks * target.chunk, total):,} of {total:,} tokens"

    return told


def writer(out: IO[str], *, markdown: bool, thoughts: bool) -> Writer:
    """Return a writer of answers on `out`."""
    if markdown:
        return MarkdownWriter(out, thoughts=thoughts)
    aside = sys.stderr if thoughts and sys.stderr.isatty() else None
    return PlainWriter(out, aside, safe=out.isatty(), dim=console.coloured())
