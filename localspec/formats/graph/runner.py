"""A stateful graph reads texts without an engine: for who cuts it and wants to know what is left."""

from __future__ import annotations

from collections.abc import Collection
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Logits, Tokens
from localspec.formats.graph import surgery

ARITHMETIC = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
BEFORE = 100  # tokens that stand before those whose cost is measured
WIDTHS = (1, 2)  # tokens of a pass whose cost is measured
WARMING, REPEAT = 2, 12  # such passes that do not count, and that do


class Reading:
    """A graph that is compiled as it stands; it may be cut further, this one does not change."""

    def __init__(self, model: Any, *, hidden: bool = False) -> None:
        import openvino as ov

        own = model.clone()
        self._shown = surgery.show_hidden(own) if hidden else []
        self._named = {port.any_name for port in own.inputs}
        self._request = ov.Core().compile_model(own, "CPU", ARITHMETIC).create_infer_request()

    def logits(self, tokens: Tokens) -> Logits:
        """Return the logits [tokens, vocab] of a text: a view that holds until the next call."""
        self._request.reset_state()
        self._read(tokens, 0)
        found: Logits = self._request.get_tensor("logits").data[0]
        return found

    def states(self, tokens: Tokens) -> NDArray[np.float32]:
        """Return what enters each layer and leaves the last, [layers + 1, tokens, width]."""
        self._request.reset_state()
        self._read(tokens, 0)
        return np.stack([self._request.get_tensor(name).data[0] for name in self._shown])

    def begin(self) -> None:
        """Read what stands before tokens whose cost is measured."""
        self._request.reset_state()
        self._read(range(1, BEFORE + 1), 0)

    def read_on(self, count: int, at: int) -> float:
        """Read `count` tokens, `at` places behind what `begin` read; return the seconds that it took."""
        started = perf_counter()
        self._read(range(at + 1, at + count + 1), BEFORE + at)
        return perf_counter() - started

    def _read(self, tokens: Tokens, past: int) -> None:
        self._request.infer(inputs(self._named, tokens, past))


def by_turns(*readings: Reading) -> list[list[float]]:
    """Return the median seconds of passes over WIDTHS for each graph; all take turns."""
    for reading in readings:
        reading.begin()
    spent: list[list[list[float]]] = [[[] for _ in WIDTHS] for _ in readings]
    at = 0
    for turn in range(WARMING + REPEAT):
        for number, count in enumerate(WIDTHS):
            for reading, found in zip(readings, spent, strict=True):
                taken = reading.read_on(count, at)
                if turn >= WARMING:
                    found[number].append(taken)
            at += count
    return [[median(times) for times in found] for found in spent]


def inputs(names: Collection[str], tokens: Tokens, past: int = 0) -> dict[str, Any]:
    """Return what a stateful graph, whose inputs have these `names`, reads `tokens` behind `past` ones by."""
    count = len(tokens)
    every = {
        "input_ids": np.array(tokens, np.int64)[None],
        "attention_mask": np.ones((1, past + count), np.int64),
        "position_ids": np.arange(past, past + count, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    return {name: value for name, value in every.items() if name in names}
