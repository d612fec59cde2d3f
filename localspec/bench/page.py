"""A report as a self-contained HTML page, with tables and SVG plots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from localspec.bench.wording import counted, parities

Values = dict[str, Any]

TEMPLATE = Path(__file__).with_name("page.html.jinja")
WIDTH = 440  # of a plot, in SVG units
ROW_HEIGHT, TOP = 38, 18  # of a row of speed-ups, and of the label above all rows
MARGIN = 1.3  # times the greatest speed-up is the end of the plot, which cuts longer intervals
COLOURS = ("#2563eb", "#059669", "#d97706", "#7c3aed", "#dc2626", "#0891b2", "#4d7c0f", "#be185d")
MAX_STEPS = 200  # of a timeline


def page(report: Values) -> str:
    """Return the HTML of a report."""
    from jinja2 import Environment, select_autoescape

    environment = Environment(
        autoescape=select_autoescape(default=True), trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["counted"] = counted
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    html: str = template.render(
        report=report,
        created=f"{datetime.fromisoformat(report['created']):%Y-%m-%d %H:%M %Z}",
        parities=parities(report),
        speeds=_speed_plot(report),
        acceptance=_lines(
            {row["backend"]: list(enumerate(row["acceptance"], 1)) for row in report["summary"]}, floor=1.0
        ),
        costs=_lines(
            {
                f"after {context} tokens": [(int(width), spent) for width, spent in times.items()]
                for context, times in report["pass_milliseconds"].items()
            }
        ),
        timelines=list(_timelines(report)),
        width=WIDTH,
    )
    return html


def _speedups(report: Values) -> list[Values]:
    """Return the speed-ups of each backend and class, with a name."""
    return [
        {"name": f"{part['backend']}: {part['class']}", **part["speedup"]}
        for row in report["summary"]
        for part in ({**row, "class": "all"}, *row["classes"])
        if part["speedup"]
    ]


def _speed_plot(report: Values) -> Values | None:
    """Return a bar for each speed-up with its interval, and the line of plain decoding, in units of the plot.

    An interval that goes on beyond the plot is marked as cut. None without any speed-up.
    """
    ratios = _speedups(report)
    if not ratios:
        return None
    end = MARGIN * max(1.0, *(ratio["value"] for ratio in ratios))

    def x(value: float) -> float:
        return float(round(min(value / end, 1.0) * (WIDTH - 10), 1))

    bars = [
        {
            "name": ratio["name"],
            "ratio": ratio,
            "y": TOP + number * ROW_HEIGHT,
            "cut": ratio["high"] > end,
            **{key: x(ratio[key]) for key in ("value", "low", "high")},
        }
        for number, ratio in enumerate(ratios)
    ]
    return {
        "bars": bars,
        "one": x(1.0),
        "height": TOP + len(bars) * ROW_HEIGHT,
        "top": TOP,
        "cut": any(bar["cut"] for bar in bars),
    }


def _lines(curves: dict[str, Sequence[tuple[float, float]]], floor: float = 0.0) -> Values:
    """Return the polylines of several curves in one plot, and the ends of its axes, which begin at 0."""
    shown = {name: points for name, points in curves.items() if points}
    all_points = [point for points in shown.values() for point in points]
    right = max((x for x, _ in all_points), default=1.0)
    top = max([y for _, y in all_points] + [floor]) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return round(40 + x / right * (WIDTH - 60), 1), round(190 - y / top * 170, 1)

    return {
        "lines": [
            {
                "name": name,
                "colour": COLOURS[number % len(COLOURS)],
                "points": [place(*point) for point in points],
            }
            for number, (name, points) in enumerate(shown.items())
        ],
        "right": f"{right:g}",
        "top": f"{top:.3g}",
    }


def _timelines(report: Values) -> Iterator[Values]:
    """Yield, for each backend that drafted, the draft lengths of the answer with the most drafted tokens."""
    for row in report["summary"]:
        runs = [run for run in report["runs"] if run["backend"] == row["backend"] and run["drafted"]]
        if not runs:
            continue
        longest = max(runs, key=lambda run: int(run["drafted"]))
        draft_lengths = longest["draft_lengths"][:MAX_STEPS]
        bar, longest_draft = WIDTH / len(draft_lengths), max(draft_lengths)
        bars = [
            {
                "x": round(number * bar, 2),
                "height": round(80 * length / longest_draft, 1),
                "y": round(80 - 80 * length / longest_draft, 1),
            }
            for number, length in enumerate(draft_lengths)
        ]
        yield {
            "name": row["backend"],
            "prompt": f"{longest['suite']} {longest['prompt']}",
            "max": longest_draft,
            "steps": len(longest["draft_lengths"]),
            "bar": round(max(bar - 0.5, 0.5), 2),
            "bars": bars,
        }
