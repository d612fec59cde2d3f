"""Compare a report with an earlier one of the same machine and model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localspec.bench.report import SCHEMA
from localspec.disk import given
from localspec.errors import BadValue

SAME = ("model", "engine")
HARDWARE = ("model", "cores", "threads", "vector", "system")

Values = dict[str, Any]


def read_report(path: Path) -> Values:
    """Read a report; raises BadValue for a file that is not one, or has another schema."""
    try:
        report: Values = json.loads(given.read_text(path))
        schema = report["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadValue(f"`{path}` is not a report: {error}", "Give a file that `--json` wrote") from None
    if schema != SCHEMA:
        raise BadValue(f"`{path}` has schema {schema}, not {SCHEMA}", "Measure it again")
    return report


def differences(before: Values, after: Values) -> list[str]:
    """List what makes two reports incomparable: another machine, model or engine."""
    machine = [
        f"machine {key}: {before['machine'][key]}, now {after['machine'][key]}"
        for key in HARDWARE
        if before["machine"][key] != after["machine"][key]
    ]
    return machine + [f"{key}: {before[key]}, now {after[key]}" for key in SAME if before[key] != after[key]]


def format_comparison(before: Values, after: Values) -> str:
    """Return the speed-ups of both reports side by side, with a warning if they are not comparable.

    Only ratios are compared: the speed of a machine drifts, but runs in turns drift together.
    """
    lines = [f"since {before['created']}"]
    if changes := differences(before, after):
        lines += ["NOT COMPARABLE: " + "; ".join(changes)]
    old = {row["backend"]: row for row in before["summary"]}
    for row in after["summary"]:
        if not (now := row["speedup"]):
            continue
        was = old.get(row["backend"], {}).get("speedup")
        if not was:
            lines.append(f"{row['backend']:<34} {now['value']:.2f}, not measured before")
            continue
        changed = now["low"] > was["high"] or now["high"] < was["low"]
        verdict = "changed" if changed else "within the intervals"
        lines.append(f"{row['backend']:<34} {was['value']:.2f} -> {now['value']:.2f} ({verdict})")
    return "\n".join(lines)
