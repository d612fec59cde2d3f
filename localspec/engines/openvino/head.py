"""A head on OpenVINO: the session that its target's hidden states lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.contracts import HeadSession
from localspec.core.types import Logits, Tokens
from localspec.engines.openvino.reader import Compiled, Part, Reader
from localspec.errors import ContextFull
from localspec.formats.heads import layout
from localspec.formats.heads.graph import FUSE


class HeadFiles:
    """The parts that sessions of a head share: the tokens of its rows, and the graph that joins states."""

    def __init__(self, core: Any, folder: Path, device: str, settings: dict[str, str]) -> None:
        self.tokens = layout.read_tokens(folder)
        self.fusing = core.compile_model(core.read_model(folder / f"{FUSE}.xml"), device, settings)


class OpenVinoHeadSession(HeadSession):
    """One text that a head reads, with a paged KV cache: a rewind is free."""

    chunk = 128

    def __init__(self, engine: Compiled, compiled: Any, files: HeadFiles) -> None:
        self.tokens = files.tokens
        self._context = engine.context
        self._reader = Reader(engine, compiled)
        self._fusing = files.fusing.create_infer_request()
        self._blocks: list[int] = []
        self._length = 0
        self._led: Any = None

    def fuse(self, states: Logits) -> Logits:
        """Return what stands for the target's states."""
        fused: Logits = self._fusing.infer({0: np.ascontiguousarray(states, np.float32)})[0]
        return fused

    def lead(self, states: Logits) -> None:
        """Let the next tokens be read with `states` [tokens, width]."""
        self._led = states

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return a view [rows, tokens of the head] on the request's output."""
        if (total := self._length + len(tokens)) > self._context:
            raise ContextFull(total, self._context)
        count = len(tokens)
        if not count:
            return np.empty((0, len(self.tokens)), np.float32)
        assert len(self._led) == count
        part = Part(self._blocks, self._length, count, exact=False)
        wanted = range(count - rows, count)
        ids, states = np.array(tokens, np.int64), self._led[:, None]
        logits: Logits = self._reader.read([part], wanted, input_ids=ids, states=states)
        self._length, self._rows = total, rows
        return logits.reshape(-1, len(self.tokens))

    def own(self) -> Logits:
        """Return a view on the head's own states of the last pass."""
        states: Logits = self._reader.output(1)[: self._rows, 0]
        return states

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        self._length = min(length, self._length)
        self._reader.free(self._blocks, self._length)
        return self._length
