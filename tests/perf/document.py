"""Keep bench's reports in docs/measured and their tables in docs/performance.md.

    python tests/perf/document.py NAME REPORT.json    keep a report, without its runs, as NAME
    python tests/perf/document.py                     write the tables of all reports

The text between `<!-- bench: NAME -->` and `<!-- end -->` is generated.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
MEASURED, PERFORMANCE = DOCS / "measured", DOCS / "performance.md"
PLACE = re.compile(r"(<!-- bench: (?P<name>[\w.-]+) -->\n).*?(<!-- end -->)", re.S)

Values = dict[str, Any]


def kept(report: Values) -> Values:
    """Return a report without its runs and the folders of its files."""
    text = json.dumps({key: value for key, value in report.items() if key != "runs"})
    for word in report["command"]:
        if "/" in word:
            text = text.replace(json.dumps(word)[1:-1], Path(word).name)
    report = json.loads(text)
    words, command = iter(report["command"]), []
    for word in words:
        if word in ("--json", "--html", "--compare"):
            next(words)
        else:
            command.append(word)
    return report | {"command": command}


def table(report: Values) -> str:
    """Return the command, the machine and the table of a report, as Markdown."""
    machine, options = report["machine"], report["options"]
    engine = report["engine"]
    lines = [
        "```",
        " ".join(report["command"]),
        "```",
        "",
        f"{report['model']['name']} ({report['model']['precision']}) on `{engine['spec']}`,"
        f" {engine['device']};"
        f" {machine['model']}, {machine['cores']} cores; {report['created'][:10]}.",
        f"{options['prompts']} prompts, {options['repeat']} repetitions in turns,"
        f" at most {options['tokens']} tokens; parity checked first.",
        "",
        "| | tokens/s | speed-up | 95 % interval | tokens per pass | accepted |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in report["summary"]:
        lines.append(_row(f"**{row['backend']}**", row))
        if len(row["classes"]) > 1:
            lines += [_row(f"{part['suite']}: {part['class']}", part) for part in row["classes"]]
    lines += [f"| {one['name']} | {one['failed']} | | | | |" for one in report["backends"] if one["failed"]]
    lines += [f"| {name} | {why} | | | | |" for name, why in report["absent"].items()]
    return "\n".join(lines) + "\n"


def _row(name: str, row: Values) -> str:
    rate, ratio = row["tokens_per_second"], row["speedup"]
    cells = [
        name,
        f"{rate['median']:.1f}" if rate else "",
        f"{ratio['value']:.2f}" if ratio else "" if row["same_text"] else "different text",
        f"{ratio['low']:.2f} to {ratio['high']:.2f}" if ratio else "",
        f"{row['tokens_per_pass']:.2f}" if row["tokens_per_pass"] else "",
        f"{row['accepted'] / row['drafted']:.0%}" if row["drafted"] else "",
    ]
    return "| " + " | ".join(cells) + " |"


def written(text: str) -> str:
    """Return the text of docs/performance.md with the tables of all reports."""

    def filled(place: re.Match[str]) -> str:
        report = json.loads((MEASURED / f"{place['name']}.json").read_text("utf-8"))
        return f"{place[1]}{table(report)}{place[3]}"

    return PLACE.sub(filled, text)


def main() -> None:
    if len(sys.argv) == 3:
        MEASURED.mkdir(exist_ok=True)
        report = kept(json.loads(Path(sys.argv[2]).read_text("utf-8")))
        (MEASURED / f"{sys.argv[1]}.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    PERFORMANCE.write_text(written(PERFORMANCE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
