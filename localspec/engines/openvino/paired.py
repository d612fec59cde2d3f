"""Texts that are read in pairs of tokens, in the graphs of PIPO."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.sessions import HiddenStateBuffer, PairedText
from localspec.core.types import Logits
from localspec.engines.openvino.reader import Compiled, Part, Reader
from localspec.errors import UnsupportedModel
from localspec.formats.graph.paged import read_paged
from localspec.formats.heads.graph import STATES, read_head
from localspec.formats.pipo import layout
from localspec.formats.pipo.confidence import Confidence
from localspec.formats.pipo.graph import GRAPH, HEAD_GRAPH, SECOND


class PairFiles:
    """The compiled graphs of sessions that read pairs, and the head's own estimate of its certainty.

    Raises BrokenModel for damaged files.
    """

    def __init__(self, core: Any, folder: Path, device: str, settings: dict[str, str]) -> None:
        stored = layout.read(folder)
        self.start, self.confidence = stored.tensors["start"], Confidence(stored)
        self.layers = core.compile_model(read_paged(folder / f"{GRAPH}.xml", hidden=True), device, settings)
        self.head = core.compile_model(read_head(folder / f"{HEAD_GRAPH}.xml"), device, settings)


def check_graphs(folder: Path) -> Path:
    """Return a folder of PIPO's weights; raises UnsupportedModel for one without graphs."""
    if not all((folder / f"{name}.xml").is_file() for name in (GRAPH, HEAD_GRAPH)):
        raise UnsupportedModel(
            f"The weights of PIPO in `{folder}` have no OpenVINO graph",
            "Add them to the library with `localspec import`, or use `--engine torch`",
        )
    return folder


class OpenVinoPairSession(PairedText):
    """A text in pairs, with paged KV caches of the layers and of the head."""

    def __init__(self, engine: Compiled, files: PairFiles, vocab: int) -> None:
        super().__init__(engine.context, vocab)
        self._files = files
        self._layers, self._head = Reader(engine, files.layers), Reader(engine, files.head)
        self._blocks: list[int] = []
        self._head_blocks: list[int] = []
        self._states = HiddenStateBuffer()
        for reader, blocks in ((self._layers, self._blocks), (self._head, self._head_blocks)):
            weakref.finalize(self, reader.free, blocks, 0).atexit = False

    def _read(self, firsts: list[int], seconds: list[int], at: int, rows: int) -> Logits:
        count, told = len(firsts), (rows + 1) // 2 if rows > 1 else 0
        ids, others = np.array(firsts, np.int64), np.array(seconds, np.int64)[:, None]
        wanted = range(count - max(told, min(rows, 1)), count)
        found: Logits = self._layers.read(
            [Part(self._blocks, at, count)], wanted, input_ids=ids, **{SECOND: others}
        )
        found = found.reshape(-1, self._vocab)
        self._states.put(at, self._layers.output(1)[self._layers.places].reshape(count, -1))
        own = self._told_of(ids, at, told)
        if not told:
            return found
        return np.stack([own, found], 1).reshape(-1, self._vocab)[-rows:]

    def _ask(self, first: int, at: int) -> float:
        self._own = self._told_of(np.array([first], np.int64), at, 1)
        return self._files.confidence(self._before(at, 1)[0], self._head.output(1)[0, 0])

    def _told(self) -> Logits:
        return self._own

    def _keep(self, pairs: int) -> None:
        self._layers.free(self._blocks, pairs)
        self._head.free(self._head_blocks, pairs)

    def _told_of(self, ids: Any, at: int, rows: int) -> Logits:
        """Let the head read the first tokens of pairs from `at` on; return its logits of the last `rows`."""
        count = len(ids)
        part, states = Part(self._head_blocks, at, count, exact=False), self._before(at, count)[:, None]
        logits: Logits = self._head.read(
            [part], range(count - rows, count), input_ids=ids, **{STATES: states}
        )
        return logits.reshape(-1, self._vocab)

    def _before(self, at: int, count: int) -> Logits:
        """Return the states [count, width] before pairs from `at` on."""
        if at:
            return self._states.first(at + count - 1)[at - 1 :]
        start = self._files.start[None]
        return np.concatenate([start, self._states.first(count - 1)]) if count > 1 else start
