"""Measure the samplers on the toy's puzzles, and write the table and the plot of docs/diffusion.md.

    python tests/perf/training/diffusion_samplers.py [--puzzles 60] [--write]

Each seed draws puzzles of its own; the sums among them are held out from the training. Answers are greedy.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from itertools import islice
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "diffusion")]

import puzzles  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from localspec import plugins  # noqa: E402
from localspec.core.blocks.decode import Drafting, decode_blocks  # noqa: E402
from localspec.core.blocks.pace import FixedPace  # noqa: E402
from localspec.core.contracts import DraftModel  # noqa: E402
from localspec.core.cursor import Cursor  # noqa: E402
from localspec.core.sampler import Sampler, Sampling  # noqa: E402
from localspec.core.stop import OutputProcessor  # noqa: E402
from localspec.core.types import Step  # noqa: E402
from localspec.engines.diffusion import Diffusion  # noqa: E402

MODEL = ROOT / "tests" / "data" / "diffusion" / "toy"
DRAFT = MODEL.parent / "draft"
PAGE, PLOT = ROOT / "docs" / "diffusion.md", ROOT / "docs" / "plots" / "diffusion.svg"
SEEDS = range(10)
FAMILIES = {  # by the line of the plot
    "low_confidence": [f"low_confidence:k={k}" for k in (1, 2, 4, 8)],
    "adas": [f"adas:k={k}" for k in (1, 2, 4, 8)],
    "threshold": [f"low_confidence:threshold={share}" for share in (0.95, 0.8, 0.6, 0.4)],
    "adas, threshold": [f"adas:k=1,threshold={share}" for share in (0.95, 0.8, 0.6, 0.4)],
    "factor": [f"low_confidence:factor={factor}" for factor in (0.5, 1.0, 2.0)],
    "entropy_bounded": [f"entropy_bounded:gamma={gamma}" for gamma in (0.1, 0.5, 1.5)],
    "left_to_right": [f"left_to_right:k={k}" for k in (1, 2, 4, 8)],
    "wino": ["wino:write=0.8", "wino", "wino:write=0.4"],
    "anchor_revocable": ["anchor_revocable:write=0.8", "anchor_revocable", "anchor_revocable:write=0.4"],
}
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#17becf", "#9467bd", "#7f7f7f", "#8c564b", "#e377c2")


DRAFTS = [  # the target's sampler, and the options of its draft, None for none
    ("left_to_right", None),
    ("left_to_right", ""),
    ("left_to_right", ",copies=two"),
    ("low_confidence", None),
    ("low_confidence", ",order=confidence"),
    ("low_confidence", ",order=confidence,copies=two"),
]


class Result(NamedTuple):
    """The means over the seeds: right answers in percent and their standard error, and passes an answer."""

    family: str
    spec: str
    right: float
    error: float
    passes: float
    sums: float
    brackets: float
    accepted: float = 0.0  # share of the guesses, in percent


class Characters:
    """Text of tokens, a character each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, token: int) -> str:
        return self._tokenizer.id_to_token(token)

    def flush(self) -> str:
        return ""


class Solver:
    """The toy, with a sampler and perhaps its draft."""

    def __init__(self, engine: Diffusion, tokenizer: Tokenizer, spec: str, draft: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._target = Cursor(engine.session())
        self._sampler = plugins.parse("samplers", spec).make()
        self._drafting = None
        if draft is not None:
            part = plugins.parse("drafters", f"diffusion:name=draft{draft}")
            small = DraftModel(Diffusion(DRAFT, device="cpu"))
            self._drafting = Drafting(part.make(self._target, small), FixedPace(8))

    def solve(self, prompt: str) -> tuple[bool, list[Step]]:
        """Return whether the answer to a puzzle is right, and its steps."""
        tokens = self._tokenizer.encode(prompt).ids
        stops = [self._tokenizer.token_to_id(puzzles.END)]
        output = OutputProcessor(Characters(self._tokenizer), stop_tokens=stops, max_new_tokens=24)
        drawn = Sampler(Sampling(), answer_from=len(tokens))
        steps = list(decode_blocks(tokens, self._target, self._sampler, drawn, output, self._drafting))
        return puzzles.is_right(prompt, "".join(step.text for step in steps)), steps


def measured(family: str, spec: str, solver: Solver, count: int) -> Result:
    """Return the results of a solver on `count` puzzles of each seed."""
    shares, steps, kinds = [], list[Step](), {True: [], False: []}
    for seed in SEEDS:
        right = []
        for puzzle in islice(puzzles.drawn(1000 + seed, tested=True), count):
            solved, taken = solver.solve(puzzle.prompt)
            right.append(solved)
            kinds[puzzle.prompt.endswith("=")].append(solved)
            steps += taken
        shares.append(100 * statistics.mean(right))
    error = statistics.stdev(shares) / math.sqrt(len(shares))
    by_kind = [100 * statistics.mean(kinds[kind]) for kind in (True, False)]
    passes = sum(step.passes for step in steps) / (count * len(SEEDS))
    accepted = 100 * sum(step.accepted for step in steps) / max(sum(step.drafted for step in steps), 1)
    return Result(family, spec, statistics.mean(shares), error, passes, *by_kind, accepted)


def draft_table(results: list[tuple[str | None, Result]]) -> str:
    """Return the results with drafts as a Markdown table."""
    lines = ["| sampler | draft | accepted, % | passes of the target | right, % |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for draft, each in results:
        shown = "none" if draft is None else f"`diffusion:name=draft{draft}`"
        accepted = "" if draft is None else f"{each.accepted:.0f}"
        right = f"{each.right:.1f} ± {each.error:.1f}"
        lines.append(f"| `{each.spec}` | {shown} | {accepted} | {each.passes:.1f} | {right} |")
    return "\n".join(lines)


def table(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    lines = ["| sampler | passes | right, % | sums, % | brackets, % |", "| --- | --- | --- | --- | --- |"]
    for each in results:
        right = f"{each.right:.1f} ± {each.error:.1f}"
        lines.append(
            f"| `{each.spec}` | {each.passes:.1f} | {right} | {each.sums:.1f} | {each.brackets:.1f} |"
        )
    return "\n".join(lines)


def plot(results: list[Result]) -> str:
    """Return a plot of right answers against passes."""
    width, height, left, top, inner, tall = 760, 440, 56, 20, 500, 360
    most = max(each.passes for each in results) + 0.5
    least = min(each.right for each in results) // 10 * 10

    def at(each: Result) -> tuple[float, float]:
        return left + inner * each.passes / most, top + tall * (100 - each.right) / (100 - least)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for share in range(int(least), 101, 10):
        y = top + tall * (100 - share) / (100 - least)
        parts.append(f'<line x1="{left}" x2="{left + inner}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{share}</text>')
    for count in range(0, int(most) + 1, 2):
        x = left + inner * count / most
        parts.append(f'<text x="{x:.1f}" y="{top + tall + 18}" text-anchor="middle">{count}</text>')
    parts.append(
        f'<text x="{left + inner / 2}" y="{height - 18}" text-anchor="middle">passes an answer</text>'
    )
    parts.append(
        f'<text x="14" y="{top + tall / 2}" transform="rotate(-90 14 {top + tall / 2})">right, %</text>'
    )
    for number, (family, colour) in enumerate(zip(FAMILIES, COLOURS, strict=True)):
        places = [at(each) for each in results if each.family == family]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = top + 14 + 20 * number
        parts.append(f'<circle cx="{left + inner + 24}" cy="{y - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + inner + 34}" y="{y}">{family}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measure and print, or write into the docs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--puzzles", type=int, default=60, help="of each seed")
    parser.add_argument("--write", action="store_true", help="write the table and the plot into the docs")
    given = parser.parse_args()
    engine, tokenizer = Diffusion(MODEL, device="cpu"), Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    results = []
    for family, specs in FAMILIES.items():
        for spec in specs:
            results.append(measured(family, spec, Solver(engine, tokenizer, spec), given.puzzles))
            print(results[-1], flush=True)
    drafted = []
    for spec, draft in DRAFTS:
        solver = Solver(engine, tokenizer, spec, draft)
        drafted.append((draft, measured(spec, spec, solver, given.puzzles)))
    print(table(results), draft_table(drafted), sep="\n\n")
    if given.write:
        PLOT.parent.mkdir(exist_ok=True)
        PLOT.write_text(plot(results), "utf-8")
        written(samplers=table(results), drafts=draft_table(drafted))


def written(**tables: str) -> None:
    """Write tables into the page, each at its place."""
    text = PAGE.read_text("utf-8")
    for name, table in tables.items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.S)
        text = place.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
