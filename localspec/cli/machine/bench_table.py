"""A benchmark's report as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec.bench.wording import counted, parities


def format_table(report: dict[str, Any], written: Sequence[Path] = ()) -> str:
    """Return the report as lines: a row for each backend, then one for each of its classes.

    Then come the comparison of the texts, what was left out, and the files that were `written`.
    """
    head = f"{report['model']['name']} ({report['model']['precision']}) on {report['engine']['spec']}"
    prompts, times = report["options"]["prompts"], report["options"]["repeat"]
    warm = report["options"].get("temperature")  # of an older version's report: none
    lines = [
        f"{head}, {counted(prompts, 'prompt')}, {counted(times, 'repetition')}"
        + (f", temperature {warm:g}" if warm else ""),
        "",
        f"{'':<34} {'prompt/s':>9} {'tokens/s':>9} {'speed-up':>9} {'interval':>13}"
        f" {'per pass':>8} {'accepted':>8}",
    ]
    for row in report["summary"]:
        lines.append(_row(row["backend"], row))
        lines += [
            f"  {name} {counts['drafted']} drafted, {counts['accepted'] / counts['drafted']:.0%} accepted"
            for name, counts in row["sources"].items()
        ]
        if len(row["classes"]) > 1:
            lines += [_row(f"  {part['suite']}: {part['class']}", part) for part in row["classes"]]
    for backend in report["backends"]:
        if backend["failed"]:
            lines.append(f"{backend['name']:<34} {backend['failed']}")
    lines += [f"{name:<34} {reason}" for name, reason in report["absent"].items()]
    lines += [f"skipped: {line}" for line in report["skipped"]]
    lines += ["", *(f"parity of {name}: {text}" for name, text in parities(report).items())]
    lines += [f"wrote {path}" for path in written]
    return "\n".join(lines)


def _row(name: str, row: dict[str, Any]) -> str:
    ratio, rates = row["speedup"], (row["prompt_tokens_per_second"], row["tokens_per_second"])
    parts = [f"{name:<34.34}", *(f"{rate['median']:>9.1f}" if rate else f"{'':>9}" for rate in rates)]
    if ratio:
        parts += [f"{ratio['value']:>9.2f}", f"{ratio['low']:>6.2f}-{ratio['high']:<6.2f}"]
    elif row.get("lossy_speedup"):
        parts += [f"{row['lossy_speedup']['value']:>9.2f}", f"{'lossy':>13}"]
    else:
        parts += [f"{'' if row['same_text'] else 'other text':>10}", f"{'':>12}"]
    parts.append(f"{row['tokens_per_pass']:>8.2f}" if row["tokens_per_pass"] else f"{'':>8}")
    parts.append(f"{row['accepted'] / row['drafted']:>8.0%}" if row["drafted"] else "")
    return " ".join(parts).rstrip()
