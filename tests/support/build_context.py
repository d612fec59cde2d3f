"""Helpers for the tests of build steps: a context that records what it is told, and the logits of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from localspec.drafting.build_step import TargetText
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import GraphRunner

IDLE = (1, 2, 3, 4)  # layers whose output is zero
LAYERS = 6


class FakeContext:
    """Implements BuildContext with given texts and costs, and records its messages."""

    def __init__(
        self,
        texts: Sequence[TargetText],
        pass_seconds: Sequence[float],
        weights: Path | None = None,
        work_folder: Path | None = None,
    ) -> None:
        self._texts, self._pass_seconds = texts, pass_seconds
        self._weights, self._work_folder = weights, work_folder
        self.prompts: list[list[int]] = []
        self.lines: list[str] = []
        self.measured: Any = None  # in an earlier build

    def say(self, line: str) -> None:
        self.lines.append(line)

    def step(self, title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[None]:
        self.lines.append(title)
        return nullcontext()

    def advance(self, count: int = 1) -> None:
        pass

    def weights(self, of: str) -> Path:
        assert self._weights is not None
        return self._weights

    def chat_wrappers(self) -> Sequence[tuple[list[int], list[int]]]:
        return [([3, 1], [4, 1]), ([5, 9, 2], [4, 1])]

    def training_prompts(self) -> Sequence[list[int]]:
        return self.prompts

    def stop_tokens(self) -> Sequence[int]:
        return [95]

    def measured_once(self, what: str, measure: Callable[[], Any]) -> Any:
        return self.measured or measure()

    @property
    def work_folder(self) -> Path:
        assert self._work_folder is not None
        return self._work_folder

    def write_target_texts(self) -> None:
        pass

    def target_texts(self) -> Sequence[TargetText]:
        return self._texts

    def target_pass_seconds(self) -> Sequence[float]:
        return self._pass_seconds


def logits_of(folder: Path, text: list[int]) -> Any:
    """Return the logits [tokens, vocab] of a text by the graph in `folder`."""
    return GraphRunner(read_stateful(folder / "openvino_model.xml")).logits(text).copy()
