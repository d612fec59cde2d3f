"""Records -> a report: plain values under a versioned schema, documented in docs/bench.md."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from localspec import devices
from localspec.bench.backends import PLAIN, Contender, peak_memory
from localspec.bench.intervals import median_and_range, speed_up
from localspec.bench.runner import Race, Run
from localspec.core.stats import SourceCounts

SCHEMA = 1

Values = dict[str, Any]


def report(race: Race, contenders: Sequence[Contender], facts: Values) -> Values:
    """Return everything that was measured and what follows from it.

    `facts` are the model, the options and the cost curves. Seconds and bytes throughout.
    """
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["localspec", *sys.argv[1:]],
        "machine": machine(),
        **facts,
        "peak_memory": peak_memory(os.getpid()),
        "finished": race.finished,
        "contenders": [
            {
                "name": one.name,
                **one.settings,
                "peak_memory": one.peak_memory(),
                "failed": race.failed.get(one.name),
            }
            for one in contenders
        ],
        "absent": {
            name: why for name, why in race.failed.items() if name not in {one.name for one in contenders}
        },
        "summary": summary(race),
        "parity": {
            name: {
                "passed": found.passed,
                "answers": found.answers,
                "ties": found.ties,
                "failures": found.failures,
            }
            for name, found in race.parity.items()
        },
        "skipped": race.skipped,
        "runs": [found.as_values() for found in race.runs],
    }


def machine() -> Values:
    """Describe the machine; reports are compared only when these are the same."""
    found = asdict(devices.cpu())
    del found["free"]
    return found | {"system": platform.system(), "versions": devices.versions()}


def summary(race: Race) -> list[Values]:
    """Return a row for each contender over all prompts, and one for each class of prompts."""
    rows = []
    for name in dict.fromkeys(found.contender for found in race.runs):
        runs = [found for found in race.runs if found.contender == name]
        passed = name not in race.parity or race.parity[name].passed
        whole = _row(name, runs, race.runs, passed)
        kinds = list(dict.fromkeys((found.suite, found.kind) for found in runs))
        rows.append(whole | {"classes": [_class(name, kind, race.runs, passed) for kind in kinds]})
    return rows


def _class(name: str, kind: tuple[str, str], runs: Sequence[Run], passed: bool) -> Values:
    of_kind = [found for found in runs if (found.suite, found.kind) == kind]
    own = [found for found in of_kind if found.contender == name]
    return {"suite": kind[0], "class": kind[1]} | _row(name, own, of_kind, passed)


def _row(name: str, own: Sequence[Run], runs: Sequence[Run], passed: bool) -> Values:
    """Return rates with ranges, the speed-up if the texts are the same, and what guessing did."""
    rates = [1 / found.answered.seconds_per_token for found in own if found.answered.decode_seconds]
    reads = [
        found.answered.prompt_tokens / found.answered.prefill_seconds
        for found in own
        if found.answered.prefill_seconds
    ]
    pairs = paired(name, runs)
    ratio = asdict(speed_up(pairs)) if passed and name != PLAIN and pairs else None
    drafted = _sums(found.answered.drafted_at for found in own)
    accepted = _sums(found.answered.accepted_at for found in own)
    decode = _total(own, lambda run: run.answered.decode_seconds)
    passes = _total(own, lambda run: run.answered.passes)
    tokens = _total(own, lambda run: run.answered.decode_tokens)
    draft = _total(own, lambda run: run.answered.draft_seconds)
    target = _total(own, lambda run: run.answered.target_seconds)
    return {
        "contender": name,
        "same_text": passed,
        "speed_up": ratio,
        "tokens_per_second": _spread(rates),
        "prompt_tokens_per_second": _spread(reads),
        "tokens_per_pass": tokens / passes if passes else None,
        "drafted": sum(drafted),
        "accepted": sum(accepted),
        "acceptance": [right / tried for right, tried in zip(accepted, drafted, strict=True) if tried],
        "sources": _sources(own),
        "share": {"draft": draft / decode, "target": target / decode, "own": 1 - (draft + target) / decode}
        if passes and decode
        else None,
    }


def _sources(runs: Iterable[Run]) -> Values:
    """Return the sums of each source of guesses, where a draft has more than one."""
    total: dict[str, SourceCounts] = {}
    for run in runs:
        for name, share in run.answered.sources.items():
            found = total.setdefault(name, SourceCounts())
            found.drafted += share.drafted
            found.accepted += share.accepted
            found.seconds += share.seconds
    return {name: asdict(share) for name, share in total.items() if name}


def paired(name: str, runs: Iterable[Run]) -> list[list[tuple[float, float]]]:
    """Return for each prompt the seconds a token of (plain, contender), repetition by repetition."""
    seconds: dict[tuple[str, str], dict[int, dict[str, list[float]]]] = {}
    for found in runs:
        if found.contender in (PLAIN, name) and found.answered.decode_tokens:
            at = seconds.setdefault((found.suite, found.prompt), {}).setdefault(found.repeat, {})
            spent = at.setdefault(found.contender, [0.0, 0.0])
            spent[0] += found.answered.decode_seconds
            spent[1] += found.answered.decode_tokens
    return [
        [(_rate(pair[PLAIN]), _rate(pair[name])) for pair in repeats.values() if {PLAIN, name} <= pair.keys()]
        for repeats in seconds.values()
    ]


def _rate(spent: list[float]) -> float:
    return spent[0] / spent[1]


def _spread(values: Sequence[float]) -> Values | None:
    return dict(zip(("median", "least", "most"), median_and_range(values), strict=True)) if values else None


def _sums(counts: Iterable[Sequence[int]]) -> list[int]:
    total: list[int] = []
    for count in counts:
        total += [0] * (len(count) - len(total))
        for at, value in enumerate(count):
            total[at] += value
    return total


def _total(runs: Sequence[Run], of: Callable[[Run], float]) -> float:
    return sum(map(of, runs))
