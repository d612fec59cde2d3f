"""The report of a benchmark: plain values in a versioned schema, documented in docs/bench.md."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from localspec import devices
from localspec.bench.backends import Backend, MeasuredAnswer, peak_memory
from localspec.bench.intervals import median_and_range, speedup
from localspec.bench.runner import BenchRun, Parity, Run
from localspec.bench.wording import PLAIN
from localspec.core.stats import SourceCounts

SCHEMA = 1

Values = dict[str, Any]


def report(bench_run: BenchRun, backends: Sequence[Backend], facts: Values) -> Values:
    """Return everything that was measured, and its summary, in seconds and bytes.

    `facts` are the model, the options and the cost curves.
    """
    names = {backend.name for backend in backends}
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["localspec", *sys.argv[1:]],
        "machine": machine(),
        **facts,
        "peak_memory": peak_memory(os.getpid()),
        "finished": bench_run.finished,
        "backends": [
            {
                "name": backend.name,
                **backend.settings,
                "peak_memory": backend.peak_memory(),
                "failed": bench_run.failed.get(backend.name),
            }
            for backend in backends
        ],
        "absent": {name: reason for name, reason in bench_run.failed.items() if name not in names},
        "summary": summary(bench_run),
        "parity": {name: _parity_values(parity) for name, parity in bench_run.parity.items()},
        "skipped": bench_run.skipped,
        "runs": [run.as_values() for run in bench_run.runs],
    }


def _parity_values(parity: Parity) -> Values:
    return {
        "passed": parity.passed,
        "answers": parity.answers,
        "ties": parity.ties,
        "failures": parity.failures,
        "lossy": parity.lossy,
    }


def machine() -> Values:
    """Describe the machine; only reports of the same machine are comparable."""
    processor = asdict(devices.cpu())
    del processor["free"]
    cards = [card._asdict() for card in devices.nvidia_cards()]
    for card in cards:
        del card["uuid"]
    return processor | {"cards": cards, "system": platform.system(), "versions": devices.versions()}


def summary(bench_run: BenchRun) -> list[Values]:
    """Return a row for each backend over all prompts, with one for each class of prompts."""
    rows = []
    for name in dict.fromkeys(run.backend for run in bench_run.runs):
        own = [run for run in bench_run.runs if run.backend == name]
        parity = bench_run.parity.get(name, Parity())
        total = _row(name, bench_run.runs, parity)
        kinds = list(dict.fromkeys((run.suite, run.kind) for run in own))
        rows.append(total | {"classes": [_class(name, kind, bench_run.runs, parity) for kind in kinds]})
    return rows


def _class(name: str, kind: tuple[str, str], runs: Sequence[Run], parity: Parity) -> Values:
    of_kind = [run for run in runs if (run.suite, run.kind) == kind]
    return {"suite": kind[0], "class": kind[1]} | _row(name, of_kind, parity)


def _row(name: str, runs: Sequence[Run], parity: Parity) -> Values:
    """Return a backend's rates with ranges, its speed-up if parity has passed, and its draft statistics.

    That of a lossy backend stands apart.
    """
    answers = [run.answer for run in runs if run.backend == name]
    pairs = paired(name, runs)
    passes = sum(answer.passes for answer in answers)
    tokens = sum(answer.decode_tokens for answer in answers)
    ratio = asdict(speedup(pairs)) if name != PLAIN and pairs else None
    drafted = _sum_by_position(answer.drafted_at for answer in answers)
    accepted = _sum_by_position(answer.accepted_at for answer in answers)
    return {
        "backend": name,
        "same_text": parity.passed,
        "speedup": ratio if parity.passed and not parity.lossy else None,
        "lossy_speedup": ratio if parity.lossy else None,
        "tokens_per_second": _spread(
            [1 / answer.seconds_per_token for answer in answers if answer.decode_seconds]
        ),
        "prompt_tokens_per_second": _spread(
            [answer.prompt_tokens / answer.prefill_seconds for answer in answers if answer.prefill_seconds]
        ),
        "tokens_per_pass": tokens / passes if passes else None,
        "drafted": sum(drafted),
        "accepted": sum(accepted),
        "acceptance": [right / tried for right, tried in zip(accepted, drafted, strict=True) if tried],
        "sources": _sources(answers),
        "share": _time_shares(answers) if passes else None,
    }


def _time_shares(answers: Sequence[MeasuredAnswer]) -> Values | None:
    """Return the shares of decode time in the drafter, the target and localspec's own code."""
    decode = sum(answer.decode_seconds for answer in answers)
    draft = sum(answer.draft_seconds for answer in answers)
    target = sum(answer.target_seconds for answer in answers)
    if not decode:
        return None
    return {"draft": draft / decode, "target": target / decode, "own": 1 - (draft + target) / decode}


def _sources(answers: Iterable[MeasuredAnswer]) -> Values:
    """Return the totals of each source of draft tokens, for a drafter with several."""
    totals: dict[str, SourceCounts] = {}
    for answer in answers:
        for name, counts in answer.sources.items():
            total = totals.setdefault(name, SourceCounts())
            total.drafted += counts.drafted
            total.accepted += counts.accepted
            total.seconds += counts.seconds
    return {name: asdict(total) for name, total in totals.items() if name}


def paired(name: str, runs: Iterable[Run]) -> list[list[tuple[float, float]]]:
    """Return for each prompt the seconds per token of (plain, backend), for each repetition."""
    totals: dict[tuple[str, str], dict[int, dict[str, list[float]]]] = {}  # seconds and tokens
    for run in runs:
        if run.backend in (PLAIN, name) and run.answer.decode_tokens:
            repetition = totals.setdefault((run.suite, run.prompt), {}).setdefault(run.repeat, {})
            total = repetition.setdefault(run.backend, [0.0, 0.0])
            total[0] += run.answer.decode_seconds
            total[1] += run.answer.decode_tokens
    return [
        [
            (pair[PLAIN][0] / pair[PLAIN][1], pair[name][0] / pair[name][1])
            for pair in repetitions.values()
            if {PLAIN, name} <= pair.keys()
        ]
        for repetitions in totals.values()
    ]


def _spread(values: Sequence[float]) -> Values | None:
    return dict(zip(("median", "min", "max"), median_and_range(values), strict=True)) if values else None


def _sum_by_position(counts: Iterable[Sequence[int]]) -> list[int]:
    total: list[int] = []
    for count in counts:
        total += [0] * (len(count) - len(total))
        for position, value in enumerate(count):
            total[position] += value
    return total
