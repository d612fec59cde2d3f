"""Choose between engines that can run a model on the same device by timing their passes.

Each engine runs in a process of its own, so that one which crashes has only lost. Passes take turns, because
machines slow down at times. The times are kept for this machine, model file and version.
`python -m localspec.runtime.engine_race ENGINE PATH CACHE` is the other end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from localspec import devices, plugins
from localspec.children import JsonChild, replies_on_stdout
from localspec.core.contracts import Session
from localspec.drafting.pass_costs import pass_seconds
from localspec.drafting.speedup import expected_rate
from localspec.errors import ChildFailed, LocalspecError
from localspec.library import Progress, StoredModel, compiled_folder
from localspec.runtime.loading import LoadSpec
from localspec.state import probes

ENGINES = ("openvino", "llamacpp")  # the default first
LIMIT = 15.0  # seconds that a race may take
WIDTHS = (1, 4, 8)  # tokens of the passes that are timed: plain decoding, and drafts
WARM_UP = 2  # passes before the one that is timed
READ = 64  # tokens of the prompt that is timed
LEAST, MOST = 3, 4  # rounds; fewer than LEAST decide nothing
DISTURBED = 1.5  # a median over a minimum that shows other work on the machine
SMALL = 200_000_000  # bytes of weights below which every engine is fast: about 100 tokens a second
TRIES = 2  # races that ran out of time or were disturbed, after which none is begun
UNDECIDED = "a comparison of the engines ran out of time or was disturbed"

# A typical request, from the suites of docs/performance.md
PROMPT_SHARE = 0.5  # prompt tokens to read for each token of an answer
COPIED = 0.5  # share of an answer that copies of earlier text guess
OF_COPIES, OF_MODEL = 0.85, 0.75  # probability that a guess is accepted there, and that of a draft model's

Costs = Mapping[str, float]  # milliseconds of a pass by its width, and of a prompt token under "prompt"
Times = dict[str, list[float]]  # the same, of each round


@dataclass(frozen=True, slots=True)
class Verdict:
    """The engine that won, and the reason in words, empty if the race did not matter."""

    winner: LoadSpec
    reason: str


def race(runners: Mapping[LoadSpec, float | None], progress: Progress) -> Verdict:
    """Return which of the engines gives more tokens a second; the first wins a race that is not held.

    `runners` maps each to the cost of a guess relative to a pass over one token: 0 for copies, None for no
    draft. Raises nothing: an engine that fails has lost.
    """
    first, key = next(iter(runners)), _key(runners)
    known, fresh = probes.read(key), {}
    if not known.get("costs"):
        undecided = known.get("undecided", 0)
        if (reason := _not_worthwhile(list(runners), undecided)) is not None:
            return Verdict(first, reason)
        with progress.step("Measuring which engine is faster"):
            known = fresh = _hold(list(runners))
        for line in fresh["said"]:
            progress.say(line)
        decided = "costs" in fresh and not fresh["disturbed"]
        probes.add(key, **(fresh if decided else {"undecided": undecided + 1}))
        if "costs" not in fresh:
            return Verdict(first, UNDECIDED)
    finished = {
        runner: known["costs"][runner.spec.name] for runner in runners if runner.spec.name in known["costs"]
    }
    winner = max(finished, key=lambda runner: tokens_per_second(finished[runner], runners[runner]))
    reason = format_costs(known["costs"])
    if fresh:
        progress.say(f"Using {winner.spec.name}: {reason}; this took {fresh['seconds']:.0f} s")
    return Verdict(winner, reason)


def known_costs(model: StoredModel) -> dict[str, Costs]:
    """Return what a race between the default engines measured for a model, empty if none was held."""
    if not (model.files_in("openvino") and model.files_in("gguf")):
        return {}
    runners = [LoadSpec(plugins.parse("engines", name), model) for name in ENGINES]
    costs: dict[str, Costs] = probes.read(_key(runners)).get("costs", {})
    return costs


def format_costs(costs: Mapping[str, Costs]) -> str:
    """Return what was measured in words."""
    return "; ".join(
        f"{name} {1000 / of_engine['1']:.1f} tokens/s plain, {1000 / of_engine['8']:.1f} passes over 8, "
        f"{1000 / of_engine['prompt']:.0f} tokens/s of a prompt"
        for name, of_engine in costs.items()
    )


def tokens_per_second(costs: Costs, draft_cost: float | None) -> float:
    """Return the tokens of a typical answer per second, its prompt included."""
    seconds_per_token = 1 / decoding_rate(costs, draft_cost) + PROMPT_SHARE * costs["prompt"] / 1000
    return 1 / seconds_per_token


def decoding_rate(costs: Costs, draft_cost: float | None) -> float:
    """Return the tokens per second of decoding, at the best draft length (drafting/speedup.py)."""
    seconds = pass_seconds({width: costs[width] for width in map(str, WIDTHS)})
    if draft_cost is None:
        return 1 / seconds[0]
    copied = expected_rate(seconds, 0, OF_COPIES)
    others = expected_rate(seconds, draft_cost * seconds[0], OF_MODEL) if draft_cost else 1 / seconds[0]
    return 1 / ((1 - COPIED) / others + COPIED / copied)


def _key(runners: Iterable[LoadSpec]) -> str:
    return probes.key("engine race", *(runner.key for runner in runners))


def _not_worthwhile(runners: Sequence[LoadSpec], undecided: int) -> str | None:
    """Return why no race is held, empty where none would matter, None if one is held."""
    weights = [runner.memory for runner in runners]
    if max(weights) < SMALL:
        return ""
    if undecided >= TRIES:
        return UNDECIDED
    if sum(weights) + len(runners) * devices.ENGINE_OVERHEAD > devices.free_memory():
        return "two engines at once, to compare them, do not fit in memory"
    return None


def _hold(runners: Sequence[LoadSpec]) -> dict[str, Any]:
    """Time all engines in turns; return their costs unless time ran out, and what there is to say."""
    started = perf_counter()
    said: list[str] = []
    times: dict[str, Times] = {runner.spec.name: {} for runner in runners}
    with _children(runners) as children, suppress(TimeoutError):
        for number in range(1 + MOST):  # the first round waits for the engines and warms them up
            for child in list(children):
                try:
                    _time(child, times[child.name], started + LIMIT, keep=number > 0)
                except ChildFailed as error:
                    children.remove(child)
                    child.end()
                    del times[child.name]
                    said.append(f"{error.message}: this engine is left out")
    found = {"said": said, "seconds": perf_counter() - started, "disturbed": False}
    if not times or min(len(of_engine.get(str(WIDTHS[-1]), ())) for of_engine in times.values()) < LEAST:
        return found
    if any(median(of_engine["1"]) > DISTURBED * min(of_engine["1"]) for of_engine in times.values()):
        found["disturbed"] = True
        said.append("Other work disturbed this measurement: it is not kept")
    costs = {
        name: {what: min(taken) for what, taken in of_engine.items()} for name, of_engine in times.items()
    }
    return found | {"costs": costs}


@contextmanager
def _children(runners: Sequence[LoadSpec]) -> Iterator[list[JsonChild]]:
    """Start a process for each engine, and end them all."""
    children: list[JsonChild] = []
    try:
        for runner in runners:
            arguments = (str(runner.spec), str(runner.path), str(compiled_folder(runner.model.folder)))
            children.append(JsonChild(runner.spec.name, __name__, *arguments))
        yield children
    finally:
        for child in children:
            child.end()


def _time(child: JsonChild, times: Times, deadline: float, *, keep: bool) -> None:
    """Time one prompt and one pass of each width; raises ChildFailed, and TimeoutError at the deadline."""
    reply = child.ask({"read": READ, "widths": WIDTHS}, max(deadline - perf_counter(), 0.0))
    if keep:
        for what, milliseconds in reply.items():
            times.setdefault(what, []).append(milliseconds)


def timed_round(session: Session, vocab: int, read: int, widths: Sequence[int]) -> dict[str, float]:
    """Return the milliseconds of a pass over each of `widths` tokens, and per token of a prompt.

    A pass follows WARM_UP others of its width, as in decoding: the other engine has emptied the processor's
    cache, and a new width costs OpenVINO 3 ms.
    """
    tokens = [at % vocab for at in range(3, 3 + read)]
    session.rewind(0)
    started = perf_counter()
    session.forward(tokens, 1)
    found = {"prompt": 1000 * (perf_counter() - started) / read}
    for width in widths:
        for _ in range(1 + WARM_UP):
            started = perf_counter()
            session.forward(tokens[:width], width)
            found[str(width)] = 1000 * (perf_counter() - started)
            session.forward(tokens[session.rewind(read) :], 0)
    return found


def main(engine: str, path: str, cache: str) -> None:
    """Load the engine and time a round for each request."""
    with replies_on_stdout() as reply:
        try:
            made = plugins.parse("engines", engine).make(Path(path), Path(cache))
            session = made.session()
            for line in sys.stdin:
                request = json.loads(line)
                reply(timed_round(session, made.vocab, request["read"], request["widths"]))
        except LocalspecError as error:
            reply({"error": error.message, "hint": error.hint})


if __name__ == "__main__":
    main(*sys.argv[1:])
