"""Intel's NPU: a graph compiled for a maximum prompt and a maximum answer."""

from __future__ import annotations

import math
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.contracts import Engine, Session
from localspec.core.types import Logits, Tokens
from localspec.engines.npu.graph import group_wise, read_static
from localspec.engines.npu.trial import Plan, compiled, core_of, infer, try_out
from localspec.errors import ContextFull, PromptTooLong, UnsupportedModel
from localspec.formats.files import context_length
from localspec.installation import install_command
from localspec.plugins import Option
from localspec.signals import signal_stack_kept

EXPORT = "--weight-format int4 --sym --group-size -1 --ratio 1.0"
PIECE = 256  # tokens in which a cursor reads a long prompt: more are likely to follow such a piece
TOKENS_A_PASS = 64  # tokens of `prompt` for whose prefill a pass could be run: 3 to 20 passes were measured


def channel_wise() -> str:
    """Return the hint on how to get weights that an NPU can run."""
    return (
        f"It needs symmetric INT4 weights with one scale a row: `{install_command('export')}`, then"
        f" `optimum-cli export openvino --model OWNER/NAME {EXPORT} FOLDER`"
    )


class Npu(Engine):
    """Runs an OpenVINO IR on an Intel NPU, compiled for a maximum prompt and a maximum answer.

    A pass over 1 token costs as much as one over `width`. `device=CPU` is the plug-in's emulation, in float32
    with a float16 KV cache. A child process tries the compiler once for each model, driver and set of
    options. Texts that are read in turns need as many `texts`: the plug-in tracks the tokens of one text
    only.
    """

    @signal_stack_kept()
    def __init__(
        self,
        model: Path,
        cache: Path | None = None,
        *,
        device: Annotated[str, Option("an NPU as OpenVINO names it, `CPU` for its emulation")] = "NPU",
        prompt: Annotated[int, Option("maximum prompt in tokens", least=64, most=32768)] = 1024,
        response: Annotated[int, Option("maximum answer in tokens", least=64, most=32768)] = 512,
        width: Annotated[int, Option("maximum tokens per pass", least=1, most=64)] = 8,
        texts: Annotated[
            int, Option("texts read in turns; each takes memory for all weights", least=1, most=64)
        ] = 1,
    ) -> None:
        plan = Plan(device, prompt, response, width)
        core = core_of(device)
        graph = read_static(model / "openvino_model.xml")
        grouped = group_wise(graph) if device != "CPU" else None
        if grouped:
            raise UnsupportedModel(f"`{model}` has weights in groups, such as `{grouped}`", channel_wise())
        try_out(core, model, plan, cache)
        self._compile = partial(compiled, core, graph, plan, cache)
        self._places = [Place(self._compile())]
        self._most = texts
        self._choosing = threading.Lock()
        self.device = device
        self.vocab = int(self._places[0].compiled.output("logits").partial_shape[-1].get_length())
        self.plan = plan
        self.context = min(prompt + response, context_length(model))

    def session(self) -> Session:
        """Return a new, empty session; with more than `texts` of them, each turn begins with a prefill."""
        with self._choosing:
            place = min(self._places, key=lambda place: len(place.sessions))
            if place.sessions and len(self._places) < self._most:
                place = Place(self._compile())
                self._places.append(place)
            session = NpuSession(self, place)
            place.sessions.add(session)
            return session


class Place:
    """A compiled model. The plug-in tracks the tokens of one text, whichever request they come from."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.sessions: weakref.WeakSet[NpuSession] = weakref.WeakSet()
        self.busy = threading.Lock()
        self.reader: object = None  # the session whose text it tracks


class NpuSession(Session):
    """One text in the plug-in's KV cache, and its tokens, so that it can be read again.

    A chunk of PIECE tokens without logits waits for the next one, so that a prompt is read in one pass; a
    prompt that is too long waits for its end, so that the error can tell its length.
    """

    def __init__(self, engine: Npu, place: Place) -> None:
        self._engine = engine
        self._place = place
        self._name = object()
        with place.busy:
            self._request = place.compiled.create_infer_request()
        self._tokens: list[int] = []
        self._read = 0  # of them were read
        self._lost = False  # a pass was interrupted: the content of the cache is unknown
        self._longest = 0  # tokens that the plug-in's mask ever showed: it hides none by itself
        self._behind = 0  # tokens of a prefill without a pass after it

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return the logits [rows, vocab] of the last `rows` of them.

        Raises ContextFull, PromptTooLong for a first text above `prompt`, and DriverFailed.
        """
        text = [*self._tokens, *tokens]
        self._check(len(text), rows)
        logits = np.empty((0, self._engine.vocab), np.float32)
        readable = self._read or len(text) <= self._engine.plan.prompt
        if rows or (readable and 0 < len(tokens) < PIECE):
            with self._place.busy:
                logits = self._reach(text, rows)
        self._tokens = text
        return logits

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass hides the rest."""
        del self._tokens[length:]
        self._read = min(self._read, length)
        return len(self._tokens)

    def _check(self, total: int, rows: int) -> None:
        plan, context = self._engine.plan, self._engine.context
        if total > context:
            full = ContextFull(total, context)
            if context == plan.prompt + plan.response:
                full.hint = "Choose a larger `npu:prompt=...` or `npu:response=...`"
            raise full
        first = total - rows + 1  # a draft may follow the prompt
        if rows and not self._read and first > plan.prompt:
            enough = math.ceil(first / 1024) * 1024
            raise PromptTooLong(first, plan.prompt, f"Choose `npu:prompt={enough}`")

    def _reach(self, text: list[int], rows: int) -> Logits:
        """Read the unread tokens of `text`; return the logits of its last `rows` tokens.

        A new prefill reads everything in one pass and gives logits of its last token only. Other passes read
        `width` tokens.
        """
        total, plan = len(text), self._engine.plan
        at = 0 if self._lost or self._place.reader is not self._name else self._read
        whole = min(total - max(rows - 1, 0), plan.prompt)
        passes = math.ceil((total - at) / plan.width)
        parts: list[Logits] = []
        self._lost, self._place.reader = True, self._name
        if whole > max(at, 1) and (at == 0 or passes > plan.prompt // TOKENS_A_PASS):
            parts.append(self._infer(text[:whole], 0, int(whole == total - rows + 1)))
            at = whole
        if 0 < at < self._behind:  # the plug-in would take part of a prefill from the wrong end
            self._infer([0], self._behind, 0)
        while at < total:
            size = min(plan.width, total - at) if at else 1  # several tokens at 0 would be a prefill
            wanted = min(size, max(at + size - total + rows, 0))
            parts.append(self._infer(text[at : at + size], at, wanted))
            at += size
        self._read, self._lost = total, False
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _infer(self, tokens: list[int], past: int, rows: int) -> Logits:
        """Read tokens after `past` others; return a copy of the last `rows` logits [rows, vocab].

        Several tokens at 0 start over. Otherwise the mask is set to 0 for tokens of longer, rewound texts:
        the plug-in keeps them and would attend to them.
        """
        count = len(tokens)
        shown = 0 if past == 0 and count > 1 else max(past, self._longest)
        mask = mask_of(past, shown, count)
        self._longest = max(self._longest, past, 0 if shown else count)
        self._behind = 0 if shown else count
        window = infer(self._request, tokens, past, mask)
        return window[len(window) - rows :].copy()


def mask_of(past: int, shown: int, count: int) -> NDArray[np.int64]:
    """Return 1 for `past` tokens, 0 up to the `shown` ones of a longer text, and 1 for `count` new ones."""
    mask = np.ones(shown + count, np.int64)
    mask[past:shown] = 0
    return mask
