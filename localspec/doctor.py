"""What can be found out about a model on this machine: does it rewind and agree, and what does a pass cost.

Nothing is printed; what matters later is kept as a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from localspec import devices, plugins
from localspec.core.contracts import Drafter, Engine
from localspec.core.cursor import Cursor
from localspec.core.parity import ROUNDED, first_difference
from localspec.core.rewind_check import rewind_fault
from localspec.core.types import Step
from localspec.drafting.pass_costs import curves, pass_milliseconds
from localspec.errors import PromptError
from localspec.library import Library, Progress
from localspec.runtime.generation import Runtime, greedy
from localspec.runtime.resolution import OFF_PART, Choice, LoadSpec, engine_spec
from localspec.state import probes

PROMPTS = (
    "Count from one to ten in words.",
    "Write a Python function that returns the largest of three numbers.",
    "Name three rivers in Europe and say where each of them ends.",
)
ANSWER = 48  # tokens of each answer
GUESSES = 4  # a round
LONG = 300  # tokens that the longer proof of a rewind keeps
CACHE = 4096  # tokens for which caches are estimated
Record = dict[str, Any]


def examine(name: str, choice: Choice, library: Library, progress: Progress) -> Record:
    """Return everything that is found out about the model called `name` and its draft.

    Raises what loading raises. Times are in milliseconds, memory in bytes. `sound` is False when a rewind
    leaves a trace, or when the draft or the device changes the text beyond a near tie.
    """
    started = perf_counter()
    runtime = Runtime(name, choice, library, progress)
    loaded = perf_counter() - started
    progress.step("Rewinding")
    rewind = _rewind(runtime.engine)
    progress.step("Comparing text with the draft and without")
    texts = _texts(runtime)
    progress.step("Comparing text with the CPU's")
    agreement = _agreement(runtime)
    progress.step("Timing passes")
    curve = curves(runtime.engine)
    ratio = _draft_ratio(runtime, curve)
    found = {
        "model": runtime.model.name,
        "precision": runtime.model.manifest.precision,
        "engine": str(runtime.engine_spec),
        "engine_reason": runtime.engine_reason,
        "device": runtime.engine.device,
        "load_seconds": round(loaded, 2),
        "rewind": rewind,
        "draft": str(runtime.draft_spec),
        "texts": texts,
        "cpu": agreement,
        "pass_milliseconds": curve,
        "draft_ratio": ratio,
        "memory": _memory(runtime),
    }
    sound = rewind["fault"] is None and all(text["same"] for text in [*texts, *(agreement or ())])
    _keep(runtime, found)
    return found | {"sound": sound}


def _rewind(engine: Engine) -> Record:
    """Prove a rewind in a short text and in a longer one, which leaves a sliding window behind."""
    faults = {}
    for kept in (12, min(LONG, engine.context // 2)):
        try:
            faults[kept] = rewind_fault(engine.session(), engine.vocab, kept)
        except PromptError:  # longer than the engine was compiled for
            continue
    return {"kept": list(faults), "fault": next(filter(None, faults.values()), None)}


def _texts(runtime: Runtime) -> list[Record]:
    """Compare greedy answers with four guesses a round to plain ones."""
    found = []
    for prompt in PROMPTS:
        tokens = runtime.question(prompt)
        plain = _greedy(runtime, tokens, plugins.parse("drafters", OFF_PART).make(runtime.target))
        drafted = _greedy(runtime, tokens, runtime.drafter)
        record = _compared(prompt, tokens, _told(plain), _told(drafted), runtime.engine)
        found.append(record | {"guessed": sum(last.drafted for last in drafted)})
    return found


def _agreement(runtime: Runtime) -> list[Record] | None:
    """Compare plain answers of a device to the CPU's; None where the device is the CPU."""
    spec = runtime.engine_spec
    if spec.name != "npu" and runtime.engine.device.upper() == "CPU":
        return None
    name = "openvino" if spec.name == "npu" else spec.name
    device = "CPU" if name == "openvino" else "cpu"
    engine: Engine = LoadSpec(engine_spec(name, device), runtime.model).make()
    target, none = Cursor(engine.session()), plugins.parse("drafters", OFF_PART)
    found = []
    for prompt in PROMPTS:
        tokens = runtime.question(prompt)
        theirs = _greedy(runtime, tokens, none.make(runtime.target))
        ours = _greedy(runtime, tokens, none.make(target), target)
        found.append(_compared(prompt, tokens, _told(ours), _told(theirs), engine))
    return found


def _greedy(
    runtime: Runtime, prompt: list[int], drafter: Drafter, target: Cursor | None = None
) -> list[Step]:
    return greedy(runtime, prompt, drafter, guesses=GUESSES, room=ANSWER, target=target)


def _told(steps: Sequence[Step]) -> list[int]:
    return [token for last in steps for token in last.tokens]


def _compared(prompt: str, tokens: list[int], plain: list[int], other: list[int], engine: Engine) -> Record:
    """Return whether two answers are the same, and by how many logits the first other token lost."""
    found = first_difference(plain, other, engine=engine, prompt=tokens, tolerance=ROUNDED)
    record: Record = {"prompt": prompt, "tokens": len(plain), "same": found is None or found.tie}
    return record if found is None else record | {"differs_at": found.at, "gap": round(found.gap, 4)}


def _draft_ratio(runtime: Runtime, curve: Record) -> float | None:
    """Return what a guess costs as a share of a one-token pass; None without a draft model."""
    if runtime.draft_engine is None or not curve:
        return None
    context = next(iter(curve))
    target, guess = float(curve[context]["1"]), pass_milliseconds(runtime.draft_engine, int(context))["1"]
    return round(guess / target, 3)


def _memory(runtime: Runtime) -> Record:
    """Estimate the bytes of weights and of caches of CACHE tokens; a file that both share counts once."""
    own, other = runtime.making, runtime.draft_making
    shared = other is None or other == own
    found = {
        "target": own.memory,
        "draft": 0 if shared or other is None else other.memory,
        "target_cache": own.model.kv_bytes_per_token() * CACHE,
        "draft_cache": 0 if other is None else other.model.kv_bytes_per_token() * CACHE,
    }
    return found | {"cache_tokens": CACHE, "total": sum(found.values()), "free": devices.free_memory()}


def _keep(runtime: Runtime, found: Record) -> None:
    """Keep what later runs decide by."""
    name = runtime.making.key
    known = probes.read(name).get("drafts", {})
    drafts = {runtime.draft_name: {"same": all(text["same"] for text in found["texts"])}}
    probes.add(
        name,
        rewind=found["rewind"]["fault"],
        pass_milliseconds=found["pass_milliseconds"],
        drafts=known | (drafts if runtime.draft_name else {}),
    )
