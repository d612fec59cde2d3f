"""What the tests of steps share: a build that keeps what it is told, and the rows of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from localspec.drafting.build_step import Text
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import GraphRunner

IDLE = (1, 2, 3, 4)  # layers that add nothing to what goes through them
LAYERS = 6


class Workspace:
    """A build that keeps what it is told."""

    def __init__(
        self,
        texts: Sequence[Text],
        passes: Sequence[float],
        weights: Path | None = None,
        kept: Path | None = None,
    ) -> None:
        self._texts, self._passes = texts, passes
        self._weights, self._kept = weights, kept
        self.asked: list[list[int]] = []  # prompts that a user gave
        self.lines: list[str] = []
        self.measured: Any = None  # in an earlier build

    def say(self, line: str) -> None:
        self.lines.append(line)

    def step(self, title: str, total: int | None = None) -> None:
        self.lines.append(title)

    def weights(self, of: str) -> Path:
        assert self._weights is not None
        return self._weights

    def turns(self) -> Sequence[tuple[list[int], list[int]]]:
        return [([3, 1], [4, 1]), ([5, 9, 2], [4, 1])]

    def prompts(self) -> Sequence[list[int]]:
        return self.asked

    def ends(self) -> Sequence[int]:
        return [95]

    def once(self, what: str, measure: Callable[[], Any]) -> Any:
        return self.measured or measure()

    @property
    def kept(self) -> Path:
        assert self._kept is not None
        return self._kept

    def texts(self) -> Sequence[Text]:
        return self._texts

    def passes(self) -> Sequence[float]:
        return self._passes


def rows(folder: Path, text: list[int]) -> Any:
    return GraphRunner(read_stateful(folder / "openvino_model.xml")).logits(text).copy()
