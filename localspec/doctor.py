"""Check this machine and a model on it: rewinds, parity, the cost of a pass, and whether drafts pay.

Nothing is printed; results that later runs need are kept as probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

from localspec import devices, plugins
from localspec.core.contracts import Drafter, Engine
from localspec.core.cursor import Cursor
from localspec.core.parity import ROUNDED, first_difference
from localspec.core.rewind_check import rewind_fault
from localspec.core.sampler import Sampling
from localspec.core.types import Step
from localspec.drafting.pass_costs import curves, pass_milliseconds
from localspec.errors import PromptError
from localspec.library import Library, Progress, storage, verify
from localspec.library.importing.completeness import load_if_complete
from localspec.runtime.choice import OFF_PART, Choice, engine_spec
from localspec.runtime.generation import Runtime, greedy
from localspec.runtime.loading import LoadSpec
from localspec.state import probes

PROMPTS = (
    "Count from one to ten in words.",
    "Write a Python function that returns the largest of three numbers.",
    "Name three rivers in Europe and say where each of them ends.",
)
TIMED_PROMPTS = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python class for a stack with push, pop and peek.",
    "List the days of the week, each with one thing to do on it.",
)
ANSWER_TOKENS = 48
DRAFT_LENGTH = 4
REWIND_LENGTHS = (12, 300)  # tokens that a rewind keeps; the longer text exceeds a sliding window
CACHE_TOKENS = 4096  # for the estimate of the KV caches

LITTLE_DISK = 2_000_000_000  # free bytes below which a usual model does not fit
GAIN = 1.05  # speed over plain decoding from which a draft pays: closer to 1 is noise
OTHER_ENGINE = "Try another `--engine`: `localspec devices` lists them"

Record = dict[str, Any]


class Finding(NamedTuple):
    """Something that is wrong, and what to do about it."""

    problem: str
    action: str


def check_machine(library: Library) -> list[Finding]:
    """Return what is wrong with this installation and its library, whatever the model."""
    findings = []
    if devices.LIBRARIES["openvino"].version is None:
        findings.append(Finding("`openvino` is not installed", devices.LIBRARIES["openvino"].install))
    for model in library.known():
        if model.manifest.newer:
            error = model.manifest.newer_error()
            findings.append(Finding(error.message, error.hint or "Update localspec"))
        elif load_if_complete(library.models / model.name, model.manifest) is None:
            findings.append(Finding(f"`{model.name}` is incomplete", f"localspec verify {model.name}"))
    findings += [Finding(f"`{path}` is damaged", "localspec verify") for path in verify.unreadable(library)]
    if (free := storage.free_bytes(library.home)) < LITTLE_DISK:
        findings.append(Finding(f"Only {free / 1e9:.1f} GB of disk are free", "localspec clean"))
    return findings


def faults(record: Record) -> list[Finding]:
    """Return what is wrong with a model, from the record of its checks."""
    findings = []
    if fault := record["rewind"]["fault"]:
        findings.append(Finding(f"Rewinds are not exact ({fault}), so nothing is drafted", OTHER_ENGINE))
    if not _same(record["draft_parity"]):
        action = "Use `--draft off`; `--draft auto` leaves out a draft model that did this"
        findings.append(Finding(f"`{record['drafter']}` changes the text", action))
    if not _same(record["cpu_parity"] or ()):
        problem = f"`{record['device']}` writes another text than the CPU"
        findings.append(Finding(problem, "Update its driver, or use `--device CPU`"))
    return findings


def verdict(record: Record) -> str:
    """Return in a sentence whether drafting pays for a model on this machine."""
    measured = record["draft_speed"]
    if measured is None:
        return f"Nothing is drafted: {record['off_reason'] or 'no guess was worth its cost'}"
    speedup, drafter = measured["speedup"], record["drafter"]
    speed = f"{speedup:.2f} times the speed of plain decoding over {measured['tokens']} tokens"
    if speedup >= GAIN:
        return f"Drafting with `{drafter}` pays here: {speed}"
    what = "neither gains nor loses" if speedup * GAIN > 1 else "does not pay"
    return (
        f"Drafting with `{drafter}` {what} here: {speed}; `localspec tune {record['model']}` may find better"
    )


def check_model(name: str, choice: Choice, library: Library, progress: Progress) -> Record:
    """Return the results of all checks of the model called `name` and its draft.

    Raises the errors of loading a model. Times are in milliseconds, memory in bytes. `sound` is False if a
    rewind is not exact, or if the draft or the device changes the text by more than near ties.
    """
    started = perf_counter()
    with progress.step(f"Loading {name}"):
        runtime = Runtime.load(name, choice, library, progress)
    load_seconds = perf_counter() - started
    with progress.step("Checking rewinds"):
        rewind = _check_rewinds(runtime.engine)
    with progress.step("Comparing answers with and without the draft"):
        draft_parity = _compare_draft(runtime)
    with progress.step("Comparing answers with the CPU's"):
        cpu_parity = _compare_with_cpu(runtime)
    with progress.step("Timing answers and passes"):
        draft_speed = _compare_speed(runtime)
        costs = curves(runtime.engine)
    record = {
        "model": runtime.model.name,
        "precision": runtime.model.manifest.precision,
        "engine": str(runtime.resolution.target.spec),
        "engine_reason": runtime.resolution.engine_reason,
        "device": runtime.engine.device,
        "load_seconds": round(load_seconds, 2),
        "rewind": rewind,
        "width_fault": runtime.resolution.target.width_fault(runtime.engine),
        "drafter": str(runtime.draft_spec),
        "draft_parity": draft_parity,
        "cpu_parity": cpu_parity,
        "draft_speed": draft_speed,
        "off_reason": runtime.resolution.off_reason,
        "pass_milliseconds": costs,
        "draft_cost_ratio": _draft_cost_ratio(runtime, costs),
        "memory": _estimate_memory(runtime),
    }
    _keep_probe(runtime, record)
    return record | {"sound": not faults(record)}


def _same(answers: Sequence[Record]) -> bool:
    return all(answer["same"] for answer in answers)


def _check_rewinds(engine: Engine) -> Record:
    """Check a rewind in a short text and in a longer one."""
    faults = {}
    for length in (min(length, engine.context // 2) for length in REWIND_LENGTHS):
        try:
            faults[length] = rewind_fault(engine.session(), engine.vocab, length)
        except PromptError:  # longer than the engine was compiled for
            continue
    return {"lengths": list(faults), "fault": next(filter(None, faults.values()), None)}


def _compare_draft(runtime: Runtime) -> list[Record]:
    """Compare greedy answers with a draft to plain ones."""
    records = []
    for prompt in PROMPTS:
        tokens = runtime.question(prompt)
        plain = _greedy(runtime, tokens, plugins.parse("drafters", OFF_PART).make(runtime.target))
        drafted = _greedy(runtime, tokens, runtime.drafter)
        answers = (_tokens_of(plain), _tokens_of(drafted))
        record = _compare(prompt, tokens, *answers, runtime.engine, runtime.tolerance)
        records.append(record | {"drafted": sum(step.drafted for step in drafted)})
    return records


def _compare_speed(runtime: Runtime) -> Record | None:
    """Compare the speed of answers with the draft, as its policy uses it, to plain ones.

    Returns None if nothing was drafted. A drafter remembers answers, so each prompt is new to it. The first
    step of an answer reads the prompt, so it is not timed.
    """
    none = plugins.parse("drafters", OFF_PART).make(runtime.target)
    plain, drafted, guesses = _Clock(), _Clock(), 0
    for prompt in TIMED_PROMPTS:
        tokens = runtime.question(prompt)
        _, steps = runtime.answer(tokens, sampling=Sampling(), max_tokens=ANSWER_TOKENS)
        taken = list(steps)
        drafted.add(taken)
        guesses += sum(step.drafted for step in taken)
        plain.add(_greedy(runtime, tokens, none))
    if not (guesses and plain.tokens and drafted.tokens):
        return None
    speedup = plain.seconds / plain.tokens / (drafted.seconds / drafted.tokens)
    return {"speedup": round(speedup, 3), "tokens": drafted.tokens, "drafted": guesses}


class _Clock:
    """Adds up the tokens and seconds of answers without their first steps."""

    def __init__(self) -> None:
        self.tokens, self.seconds = 0, 0.0

    def add(self, steps: Sequence[Step]) -> None:
        self.tokens += sum(len(step.tokens) for step in steps[1:])
        self.seconds += sum(step.draft_seconds + step.target_seconds for step in steps[1:])


def _compare_with_cpu(runtime: Runtime) -> list[Record] | None:
    """Compare plain answers of the device to the CPU's; None if the device is the CPU."""
    spec = runtime.resolution.target.spec
    if spec.name != "npu" and runtime.engine.device.upper() == "CPU":
        return None
    name = "openvino" if spec.name == "npu" else spec.name
    device = "CPU" if name == "openvino" else "cpu"
    engine: Engine = LoadSpec(engine_spec(name, device), runtime.model).load()
    cpu, none = Cursor(engine.session()), plugins.parse("drafters", OFF_PART)
    records = []
    for prompt in PROMPTS:
        tokens = runtime.question(prompt)
        actual = _greedy(runtime, tokens, none.make(runtime.target))
        expected = _greedy(runtime, tokens, none.make(cpu), cpu)
        records.append(_compare(prompt, tokens, _tokens_of(expected), _tokens_of(actual), engine))
    return records


def _greedy(
    runtime: Runtime, prompt: list[int], drafter: Drafter, target: Cursor | None = None
) -> list[Step]:
    return greedy(runtime, prompt, drafter, guesses=DRAFT_LENGTH, max_new_tokens=ANSWER_TOKENS, target=target)


def _tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def _compare(
    prompt: str,
    tokens: list[int],
    expected: list[int],
    actual: list[int],
    engine: Engine,
    tolerance: float = ROUNDED,
) -> Record:
    """Return whether two answers are the same, or where they differ and by how many logits."""
    difference = first_difference(expected, actual, engine=engine, prompt=tokens, tolerance=tolerance)
    record: Record = {
        "prompt": prompt,
        "tokens": len(expected),
        "same": difference is None or difference.tie,
    }
    if difference is None:
        return record
    return record | {"differs_at": difference.at, "gap": round(difference.gap, 4)}


def _draft_cost_ratio(runtime: Runtime, costs: Record) -> float | None:
    """Return the cost of a draft token as a share of a one-token pass, None without a draft model."""
    if runtime.draft_engine is None or not costs:
        return None
    context = next(iter(costs))
    target = float(costs[context]["1"])
    draft = pass_milliseconds(runtime.draft_engine, int(context))["1"]
    return round(draft / target, 3)


def _estimate_memory(runtime: Runtime) -> Record:
    """Estimate the bytes of weights and KV caches; a model that is target and draft counts once."""
    target, draft = runtime.resolution.target, runtime.resolution.draft.load
    shared = draft is None or draft == target
    sizes = {
        "target": target.memory,
        "draft": 0 if shared or draft is None else draft.memory,
        "target_cache": target.model.kv_bytes_per_token() * CACHE_TOKENS,
        "draft_cache": 0 if draft is None else draft.model.kv_bytes_per_token() * CACHE_TOKENS,
    }
    total = sum(sizes.values())
    return sizes | {"cache_tokens": CACHE_TOKENS, "total": total, "free": devices.free_memory()}


def _keep_probe(runtime: Runtime, record: Record) -> None:
    """Keep the results that the choice of a draft depends on."""
    key = runtime.resolution.target.key
    drafts = probes.read(key).get("drafts", {})
    if runtime.draft_name:
        drafts[runtime.draft_name] = {"same": _same(record["draft_parity"])}
    probes.add(
        key,
        rewind=record["rewind"]["fault"],
        pass_milliseconds=record["pass_milliseconds"],
        drafts=drafts,
    )
