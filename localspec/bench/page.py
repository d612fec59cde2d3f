"""A report as one page that needs nothing else: tables, and plots as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Values = dict[str, Any]

TEMPLATE = Path(__file__).with_name("page.html.jinja")
WIDTH, LINE, LABEL = 440, 26, 150  # of a plot: units, units a row, units for names
COLOURS = ("#2563eb", "#059669", "#d97706", "#7c3aed", "#dc2626", "#0891b2", "#4d7c0f", "#be185d")
MOST = 200  # rounds of a timeline


def page(report: Values) -> str:
    """Return the HTML of a report."""
    from jinja2 import Environment, select_autoescape

    environment = Environment(
        autoescape=select_autoescape(default=True), trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    found: str = template.render(
        report=report,
        speeds=list(_speeds(report)),
        acceptance=_lines(
            {row["contender"]: list(enumerate(row["acceptance"], 1)) for row in report["summary"]}, floor=1.0
        ),
        costs=_lines(
            {
                f"after {context} tokens": [(int(width), spent) for width, spent in times.items()]
                for context, times in report["pass_milliseconds"].items()
            }
        ),
        depths=list(_timelines(report)),
        width=WIDTH,
    )
    return found


def _speeds(report: Values) -> Iterator[Values]:
    """Yield a bar a contender and class: its speed-up with its interval, in units of the plot."""
    rows = [
        (f"{one['contender']}: {one['class']}", one["speed_up"])
        for row in report["summary"]
        for one in ({**row, "class": "all"}, *row["classes"])
        if one["speed_up"]
    ]
    most = 1.3 * max([ratio["value"] for _, ratio in rows] + [1.0])  # an interval may leave the plot

    def at(value: float) -> float:
        return float(round(LABEL + min(max(value, 0.0) / most, 1.0) * (WIDTH - LABEL - 40), 1))

    for number, (name, ratio) in enumerate(rows):
        places = {key: at(ratio[key]) for key in ("value", "low", "high")}
        yield {
            "name": name,
            "y": number * LINE + 18,
            "one": at(1.0),
            "start": LABEL,
            "ratio": ratio,
            **places,
        }


def _lines(curves: dict[str, Sequence[tuple[float, float]]], floor: float = 0.0) -> Values:
    """Return polylines of several curves in one plot, with the ends of its axes; both axes begin at 0."""
    shown = {name: points for name, points in curves.items() if points}
    every = [point for points in shown.values() for point in points]
    right = max((x for x, _ in every), default=1.0)
    top = max([y for _, y in every] + [floor]) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return round(40 + x / right * (WIDTH - 60), 1), round(190 - y / top * 170, 1)

    return {
        "lines": [
            {
                "name": name,
                "colour": COLOURS[at % len(COLOURS)],
                "points": [place(*point) for point in points],
            }
            for at, (name, points) in enumerate(shown.items())
        ],
        "right": f"{right:g}",
        "top": f"{top:.3g}",
    }


def _timelines(report: Values) -> Iterator[Values]:
    """Yield for each contender that guessed the depth of each round of the answer with the most guesses."""
    for row in report["summary"]:
        runs = [run for run in report["runs"] if run["contender"] == row["contender"] and run["drafted"]]
        if not runs:
            continue
        longest = max(runs, key=lambda run: int(run["drafted"]))
        depths = longest["depths"][:MOST]
        bar, most = WIDTH / len(depths), max(depths)
        bars = [
            {
                "x": round(at * bar, 2),
                "height": round(80 * depth / most, 1),
                "y": round(80 - 80 * depth / most, 1),
            }
            for at, depth in enumerate(depths)
        ]
        yield {
            "name": row["contender"],
            "prompt": f"{longest['suite']} {longest['prompt']}",
            "most": most,
            "rounds": len(longest["depths"]),
            "bar": round(max(bar - 0.5, 0.5), 2),
            "bars": bars,
        }
