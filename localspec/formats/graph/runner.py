"""Run a stateful graph without an engine, to measure it while pruning."""

from __future__ import annotations

from collections.abc import Collection
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Logits, Tokens
from localspec.formats.graph import surgery

COMPILE_OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
CONTEXT = 100  # tokens before the timed passes
WIDTHS = (1, 2)  # tokens of a timed pass
WARM_UP, REPEATS = 2, 12  # timed passes that are discarded, and that count


class GraphRunner:
    """Runs a copy of a graph on the CPU; the graph itself may be changed further."""

    def __init__(self, model: Any, *, hidden: bool = False) -> None:
        import openvino as ov

        own = model.clone()
        self._hidden_names = surgery.show_hidden(own) if hidden else []
        self._input_names = {port.any_name for port in own.inputs}
        self._request = ov.Core().compile_model(own, "CPU", COMPILE_OPTIONS).create_infer_request()

    def logits(self, tokens: Tokens) -> Logits:
        """Return the logits [tokens, vocab] of a text, a view that is valid until the next call."""
        self._request.reset_state()
        self._read(tokens, 0)
        logits: Logits = self._request.get_tensor("logits").data[0]
        return logits

    def hidden_states(self, tokens: Tokens) -> NDArray[np.float32]:
        """Return the input of each layer and the output of the last, [layers + 1, tokens, width]."""
        self._request.reset_state()
        self._read(tokens, 0)
        return np.stack([self._request.get_tensor(name).data[0] for name in self._hidden_names])

    def read_context(self) -> None:
        """Read the tokens before the timed passes."""
        self._request.reset_state()
        self._read(range(1, CONTEXT + 1), 0)

    def time_pass(self, count: int, at: int) -> float:
        """Read `count` tokens, `at` tokens after the context; return the seconds it took."""
        started = perf_counter()
        self._read(range(at + 1, at + count + 1), CONTEXT + at)
        return perf_counter() - started

    def _read(self, tokens: Tokens, past: int) -> None:
        self._request.infer(graph_inputs(self._input_names, tokens, past))


def median_pass_seconds(*runners: GraphRunner) -> list[list[float]]:
    """Return each graph's median seconds of passes over WIDTHS tokens; the graphs take turns."""
    for runner in runners:
        runner.read_context()
    seconds: list[list[list[float]]] = [[[] for _ in WIDTHS] for _ in runners]
    at = 0
    for repeat in range(WARM_UP + REPEATS):
        for number, count in enumerate(WIDTHS):
            for runner, times in zip(runners, seconds, strict=True):
                taken = runner.time_pass(count, at)
                if repeat >= WARM_UP:
                    times[number].append(taken)
            at += count
    return [[median(of_width) for of_width in times] for times in seconds]


def graph_inputs(names: Collection[str], tokens: Tokens, past: int = 0) -> dict[str, Any]:
    """Return the inputs, of those a stateful graph `names`, to read `tokens` after `past` others."""
    count = len(tokens)
    inputs = {
        "input_ids": np.array(tokens, np.int64)[None],
        "attention_mask": np.ones((1, past + count), np.int64),
        "position_ids": np.arange(past, past + count, dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    return {name: value for name, value in inputs.items() if name in names}
