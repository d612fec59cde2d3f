"""A report beside an earlier one of the same machine and model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from localspec.bench.report import SCHEMA
from localspec.errors import BadValue

SAME = ("model", "engine")
HARDWARE = ("model", "cores", "threads", "vector", "system")

Values = dict[str, Any]


def read(path: Path) -> Values:
    """Read a report; raises BadValue when it is none, or one of another schema."""
    try:
        found = json.loads(path.read_text("utf-8"))
        schema = found["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadValue(f"`{path}` is no report: {error}", "Give a file that `--json` wrote") from None
    if schema != SCHEMA:
        raise BadValue(f"`{path}` has schema {schema}, not {SCHEMA}", "Measure it again")
    checked: Values = found
    return checked


def differences(before: Values, after: Values) -> list[str]:
    """Name what makes two reports incomparable: another machine, model or engine."""
    found = [
        f"machine {key}: {before['machine'][key]}, now {after['machine'][key]}"
        for key in HARDWARE
        if before["machine"][key] != after["machine"][key]
    ]
    return found + [f"{key}: {before[key]}, now {after[key]}" for key in SAME if before[key] != after[key]]


def in_words(before: Values, after: Values) -> str:
    """Return the ratios of both reports side by side, with a mark where they cannot be compared.

    Only ratios are: the times of a machine wander, those of runs taken by turns do not.
    """
    lines = [f"since {before['created']}"]
    if other := differences(before, after):
        lines += ["NOT COMPARABLE: " + "; ".join(other)]
    old = {row["contender"]: row for row in before["summary"]}
    for row in after["summary"]:
        then = old.get(row["contender"])
        if not row["speed_up"]:
            continue
        if then is None or not then["speed_up"]:
            lines.append(f"{row['contender']:<34} {row['speed_up']['value']:.2f}, not measured then")
            continue
        was, now = then["speed_up"], row["speed_up"]
        apart = now["low"] > was["high"] or now["high"] < was["low"]
        verdict = "changed" if apart else "within the intervals"
        lines.append(f"{row['contender']:<34} {was['value']:.2f} -> {now['value']:.2f} ({verdict})")
    return "\n".join(lines)
