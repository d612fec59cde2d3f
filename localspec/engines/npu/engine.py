"""Intel's NPU: a graph compiled for a longest prompt and answer, in a process of its own first."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import weakref
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.contracts import Engine, Session
from localspec.core.types import Logits, Tokens
from localspec.engines.npu.graph import group_wise, read_static
from localspec.errors import (
    ContextFull,
    DriverFailed,
    LocalspecError,
    PromptTooLong,
    UnknownDevice,
    UnsupportedModel,
)
from localspec.formats.files import context_of
from localspec.formats.graph.paged import first_line
from localspec.library import compiled_folder, home
from localspec.plugins import Option
from localspec.signals import signal_stack_kept
from localspec.state import probes

CHILD = (sys.executable, "-m", "localspec.engines.npu.engine")
EXPORT = "--weight-format int4 --sym --group-size -1 --ratio 1.0"
CHANNEL_WISE = (
    "It needs symmetric INT4 weights with one scale a row: `pip install 'localspec[export]'`, then"
    f" `optimum-cli export openvino --model OWNER/NAME {EXPORT} FOLDER`"
)
OTHERWISE = "Choose `--engine openvino`"
PIECE = 256  # tokens in which a cursor reads a long prompt: more are likely to follow such a piece
TOKENS_A_PASS = 64  # tokens of `prompt` for whose prefill a pass could be run: 3 to 20 passes were measured


@dataclass(frozen=True, slots=True)
class Plan:
    """What a graph is compiled for; tokens."""

    device: str
    prompt: int
    response: int
    width: int

    @property
    def settings(self) -> dict[str, Any]:
        """The NPU plug-in's settings. Its cache has room for the prompt, the answer and one pass more."""
        emulated = {"NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}
        return {
            "NPU_USE_NPUW": "YES",
            "NPUW_LLM": "YES",
            "NPUW_LLM_BATCH_DIM": 0,
            "NPUW_LLM_SEQ_LEN_DIM": 2,
            "NPUW_LLM_MAX_PROMPT_LEN": self.prompt,
            "NPUW_LLM_MIN_RESPONSE_LEN": self.response + math.ceil(self.width / 8) * 8,
            "NPUW_LLM_MAX_GENERATION_TOKEN_LEN": self.width,
            "NPUW_LLM_PREFILL_HINT": "STATIC",
        } | (emulated if self.device == "CPU" else {})


class Npu(Engine):
    """Runs an OpenVINO IR on an Intel NPU, compiled for a longest prompt and a longest answer.

    A pass costs the same for 1 token as for `width`. `device=CPU` is the plug-in's emulation, in float32 over
    a float16 cache. The compiler is tried in a process of its own once for a model, driver and options.
    Texts that are read by turns need `texts` of their number: the plug-in keeps count of one alone.
    """

    @signal_stack_kept()
    def __init__(
        self,
        model: Path,
        *,
        device: Annotated[str, Option("OpenVINO's name of an NPU, `CPU` for its emulation")] = "NPU",
        prompt: Annotated[int, Option("longest prompt in tokens", least=64, most=32768)] = 1024,
        response: Annotated[int, Option("longest answer in tokens", least=64, most=32768)] = 512,
        width: Annotated[int, Option("most tokens verified in a pass", least=1, most=64)] = 8,
        texts: Annotated[
            int, Option("texts by turns; each takes memory for all weights", least=1, most=64)
        ] = 1,
    ) -> None:
        plan = Plan(device, prompt, response, width)
        core = core_of(device)
        graph = read_static(model / "openvino_model.xml")
        grouped = group_wise(graph) if device != "CPU" else None
        if grouped:
            raise UnsupportedModel(f"`{model}` has weights in groups, such as `{grouped}`", CHANNEL_WISE)
        try_out(core, model, plan)
        self._compile = partial(compiled, core, graph, model, plan)
        self._places = [Place(self._compile())]
        self._most = texts
        self._choosing = threading.Lock()
        self.device = device
        self.vocab = int(self._places[0].compiled.output("logits").partial_shape[-1].get_length())
        self.plan = plan
        self.context = min(prompt + response, context_of(model))

    def session(self) -> Session:
        """Return a new, empty session; above `texts` of them, a turn of each begins with a prefill."""
        with self._choosing:
            place = min(self._places, key=lambda place: len(place.sessions))
            if place.sessions and len(self._places) < self._most:
                place = Place(self._compile())
                self._places.append(place)
            session = NpuSession(self, place)
            place.sessions.add(session)
            return session


class Place:
    """A compiled model. It counts the tokens of one text, whichever request they come from."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.sessions: weakref.WeakSet[NpuSession] = weakref.WeakSet()
        self.busy = threading.Lock()
        self.reader: object = None  # whose text it counts


class NpuSession(Session):
    """One text in the plug-in's cache, and its tokens, so that it can be read again.

    A piece of PIECE tokens without rows waits for the next one, so that a prompt is read in one go; a prompt
    that is too long waits for its end, which says how long it is.
    """

    def __init__(self, engine: Npu, place: Place) -> None:
        self._engine = engine
        self._place = place
        self._name = object()
        with place.busy:
            self._request = place.compiled.create_infer_request()
        self._tokens: list[int] = []
        self._read = 0  # tokens of them that were read
        self._lost = False  # a pass did not come to its end: the cache is anything
        self._longest = 0  # the most tokens that the plug-in's mask ever showed: it never hides one by itself
        self._behind = 0  # tokens of a prefill that no pass has followed

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab] after each of the last `rows` of them.

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
        """Keep at most `length` tokens; what lies behind them is hidden from the next pass."""
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
        first = total - rows + 1  # guesses may follow a prompt
        if rows and not self._read and first > plan.prompt:
            enough = math.ceil(first / 1024) * 1024
            raise PromptTooLong(first, plan.prompt, f"Choose `npu:prompt={enough}`")

    def _reach(self, text: list[int], rows: int) -> Logits:
        """Read what is not read of `text`; return logits of its last `rows` tokens.

        A new prefill reads everything in one go, and its last row alone counts. A pass reads `width` tokens.
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
        if 0 < at < self._behind:  # the plug-in would take a part of a prefill from its wrong end
            self._infer([0], self._behind, 0)
        while at < total:
            size = min(plan.width, total - at) if at else 1  # several at 0 would be a prefill
            wanted = min(size, max(at + size - total + rows, 0))
            parts.append(self._infer(text[at : at + size], at, wanted))
            at += size
        self._read, self._lost = total, False
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _infer(self, tokens: list[int], past: int, rows: int) -> Logits:
        """Read tokens behind `past` others; return a copy of the last `rows` logits [rows, vocab].

        Several tokens at 0 start anew. Else ones that the mask once had for longer texts are set to 0: the
        plug-in leaves them, and would look at what was taken back.
        """
        count = len(tokens)
        shown = 0 if past == 0 and count > 1 else max(past, self._longest)
        mask = mask_of(past, shown, count)
        self._longest = max(self._longest, past, 0 if shown else count)
        self._behind = 0 if shown else count
        window = infer(self._request, tokens, past, mask)
        return window[len(window) - rows :].copy()


def mask_of(past: int, shown: int, count: int) -> NDArray[np.int64]:
    """Return 1 for `past` tokens, 0 up to `shown` that there were once, and 1 for `count` new ones."""
    mask = np.ones(shown + count, np.int64)
    mask[past:shown] = 0
    return mask


def infer(request: Any, tokens: list[int], past: int, mask: NDArray[np.int64]) -> Logits:
    """Read tokens behind `past` others; return the last rows of logits, as many as the plug-in keeps."""
    import openvino as ov

    inputs = {
        "input_ids": np.array(tokens, np.int64),
        "attention_mask": mask,
        "position_ids": np.arange(past, past + len(tokens), dtype=np.int64),
    }
    for name, array in inputs.items():
        request.set_tensor(name, ov.Tensor(array[None]))
    request.set_tensor("beam_idx", ov.Tensor(np.zeros(1, np.int32)))
    try:
        request.infer()
    except RuntimeError as error:
        raise DriverFailed(
            f"The NPU cannot read {len(tokens)} tokens: {first_line(error)}", OTHERWISE
        ) from None
    window: Logits = request.get_output_tensor(0).data[0]
    return window


def core_of(device: str) -> Any:
    """Return a Core that has the device; raises UnknownDevice. The emulation computes in float32 there."""
    import openvino as ov

    core = ov.Core()
    there = [name for name in core.available_devices if name.split(".")[0] == "NPU"]
    if device != "CPU" and device not in there:
        raise UnknownDevice(device, [*there, "CPU"])
    if device == "CPU":
        core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return core


def compiled(core: Any, graph: Any, model: Path, plan: Plan) -> Any:
    """Return the compiled model, from OpenVINO's own cache where it is there; raises DriverFailed."""
    device = "NPU" if plan.device == "CPU" else plan.device
    settings = plan.settings | {"CACHE_DIR": str(compiled_folder(model) / "npu")}
    try:
        return core.compile_model(graph, device, settings)
    except RuntimeError as error:
        raise DriverFailed(f"The NPU's compiler gave up: {first_line(error)}", OTHERWISE) from None


def try_out(core: Any, model: Path, plan: Plan) -> None:
    """Compile and run the model in another process, unless it is known how that ends.

    Effects: the verdict is kept. Raises DriverFailed when the compiler gave up or died.
    """
    import openvino as ov

    driver = (
        "emulation" if plan.device == "CPU" else str(core.get_property(plan.device, "NPU_DRIVER_VERSION"))
    )
    files = [probes.stamp(model / f"openvino_model.{kind}") for kind in ("xml", "bin")]
    name = f"npu/{probes.key(files, driver, ov.get_version(), plan, sorted(plan.settings.items()))}"
    known = probes.read(name)
    if "works" not in known:
        said = last_words(model, plan)
        known = {
            "works": said is None,
            "said": said,
            "model": str(model),
            "driver": driver,
            "plan": asdict(plan),
        }
        probes.add(name, **known)
    if not known["works"]:
        path = home() / "probes" / f"{name}.json"
        hint = f"{OTHERWISE}; to try again, delete `{path}`"
        raise DriverFailed(f"The NPU's compiler gave up on `{model}`: {known['said']}", hint)


def last_words(model: Path, plan: Plan) -> str | None:
    """Let a child process compile the model; return how it died and what it said last, None when it lives."""
    command = [*CHILD, str(model), json.dumps(asdict(plan))]
    child = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, errors="replace"
    )
    if child.returncode == 0:
        return None
    died = child.returncode < 0
    how = signal.Signals(-child.returncode).name if died else f"status {child.returncode}"
    lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
    return f"{lines[-1]} ({how})" if lines else how


def main(model: str, plan: str) -> None:
    """Compile the model in this process and read three tokens: what a verdict is about."""
    folder, chosen = Path(model), Plan(**json.loads(plan))
    graph = read_static(folder / "openvino_model.xml")
    request = compiled(core_of(chosen.device), graph, folder, chosen).create_infer_request()
    infer(request, [0, 0], 0, np.ones(2, np.int64))
    infer(request, [0], 2, np.ones(3, np.int64))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LocalspecError as error:
        sys.exit(error.message)
