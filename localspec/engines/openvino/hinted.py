"""Texts beside which hints are read, in the graph of K-Forcing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.contracts import HintedSession
from localspec.core.sessions import chains
from localspec.core.types import Logits, Tokens
from localspec.engines.openvino.reader import Compiled, Part, Reader
from localspec.errors import ContextFull, UnsupportedModel
from localspec.formats.k_forcing import layout
from localspec.formats.k_forcing.graph import GRAPH, NOISE, PLACES, features
from localspec.formats.k_forcing.layout import FEATURES

ROWS = 16  # of a pass; longer drafts are of others, and get no hints


def check_graph(folder: Path, device: str) -> Path:
    """Return a folder of hints; raises UnsupportedModel for one without a graph, or for another device."""
    if device != "CPU":
        raise UnsupportedModel(f"`openvino` reads hints on a CPU, not on {device}", "Leave the device out")
    if not (folder / f"{GRAPH}.xml").is_file():
        raise UnsupportedModel(
            f"The hints in `{folder}` have no OpenVINO graph",
            "Add them to the library with `localspec import`, or use `--engine torch`",
        )
    return folder


class OpenVinoHintedSession(HintedSession):
    """A text whose passes read hints after each row, if they are asked to.

    Hints are a chain of branches after each row, seen by no token of the text; their keys are overwritten.
    A pass without hints is one of the target's own graph, which has no adapters: its rows are the same.
    """

    chunk = 128

    def __init__(self, engine: Compiled, compiled: Any, plain: Any, *, folder: Path) -> None:
        self.k = layout.read_shape(folder).k
        self._context = engine.context
        self._vocab = int(compiled.output("logits").partial_shape[-1].get_length())
        self._reader = Reader(engine, plain)
        self._hints = Reader(engine, compiled, beside=self._reader)
        self._blocks: list[int] = []
        self._length = 0
        self._asked: tuple[Callable[[int], float], float, int] | None = None
        self._hinted = np.empty((0, 0, self._vocab), np.float32)
        weakref.finalize(self, self._reader.free, self._blocks, 0).atexit = False

    def hint(self, noise: Callable[[int], float], temperature: float, count: int = 0) -> None:
        """Let the next pass that has rows read hints after each of them."""
        self._asked = noise, temperature, count or self.k - 1

    def hinted(self) -> Logits:
        """Return the logits [rows, hints, vocab] after the hints of the last pass that had rows."""
        return self._hinted

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return a view [rows, vocab] on the request's output."""
        first, at = len(tokens), self._length
        if at + first > self._context:
            raise ContextFull(at + first, self._context)
        if not first:
            return np.empty((0, self._vocab), np.float32)
        told, places = np.empty((0, FEATURES), np.float32), np.empty(0, np.int64)
        if rows:
            asked, self._asked = self._asked, None
            count = asked[2] if asked else 0
            if asked and rows <= ROWS and at + first + rows * count <= self._context:
                begins = [at + first - rows + row + 1 for row in range(rows)]  # the next token of each row
                drawn = [asked[0](begin + hint) for begin in begins for hint in range(count)]
                told, places = features(np.array(drawn), asked[1]), np.tile(np.arange(count), rows)
        logits = self._read(tokens, rows, told, places)
        self._length += first
        if rows:
            self._hinted = logits[rows:].reshape(rows, -1, self._vocab) if len(told) else self._hinted[:0]
        return logits[:rows]

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        self._length = min(length, self._length)
        self._reader.free(self._blocks, self._length)
        return self._length

    def _read(self, tokens: Tokens, rows: int, told: Logits, places: Any) -> Logits:
        """Return the logits of the last `rows` tokens, and of the hints beside them."""
        first, hints = len(tokens), len(told)
        if not hints:
            found: Logits = self._reader.read(
                [Part(self._blocks, self._length, first)],
                range(first - rows, first),
                input_ids=np.array(tokens, np.int64),
            )
            return found.reshape(-1, self._vocab)
        logits: Logits = self._hints.read(
            [Part(self._blocks, self._length, first + hints, parents=chains(first, rows, hints // rows))],
            range(first - rows, first + hints),
            input_ids=np.array([*tokens, *[0] * hints], np.int64),
            **{
                NOISE: np.concatenate([np.zeros((first, FEATURES), np.float32), told])[:, None],
                PLACES: np.concatenate([np.full(first, -1), places])[:, None],
            },
        )
        return logits.reshape(-1, self._vocab)
