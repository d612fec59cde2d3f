"""Measure the samplers on the toy's puzzles, and write the table and the plot of docs/diffusion.md.

    python tests/perf/training/diffusion_samplers.py [--puzzles 100] [--write]

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
from localspec.core.blocks.decode import decode_blocks  # noqa: E402
from localspec.core.cursor import Cursor  # noqa: E402
from localspec.core.sampler import Sampler, Sampling  # noqa: E402
from localspec.core.stop import OutputProcessor  # noqa: E402
from localspec.engines.diffusion import Diffusion  # noqa: E402

MODEL = ROOT / "tests" / "data" / "diffusion" / "toy"
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


class Result(NamedTuple):
    """The means over the seeds: right answers in percent and their standard error, and passes an answer."""

    family: str
    spec: str
    right: float
    error: float
    passes: float
    sums: float
    brackets: float


class Characters:
    """Text of tokens, a character each."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def push(self, token: int) -> str:
        return self._tokenizer.id_to_token(token)

    def flush(self) -> str:
        return ""


def measured(family: str, spec: str, engine: Diffusion, tokenizer: Tokenizer, count: int) -> Result:
    """Return the results of a sampler on `count` puzzles of each seed."""
    sampler, target = plugins.parse("samplers", spec).make(), Cursor(engine.session())
    shares, passes, kinds = [], [], {True: [], False: []}
    for seed in SEEDS:
        right = []
        for puzzle in islice(puzzles.drawn(1000 + seed, tested=True), count):
            prompt = tokenizer.encode(puzzle.prompt).ids
            stops = [tokenizer.token_to_id(puzzles.END)]
            output = OutputProcessor(Characters(tokenizer), stop_tokens=stops, max_new_tokens=24)
            drawn = Sampler(Sampling(), answer_from=len(prompt))
            steps = list(decode_blocks(prompt, target, sampler, drawn, output))
            text = "".join(step.text for step in steps)
            right.append(puzzles.is_right(puzzle.prompt, text))
            kinds[puzzle.prompt.endswith("=")].append(right[-1])
            passes.append(sum(step.passes for step in steps))
        shares.append(100 * statistics.mean(right))
    error = statistics.stdev(shares) / math.sqrt(len(shares))
    by_kind = [100 * statistics.mean(kinds[kind]) for kind in (True, False)]
    return Result(family, spec, statistics.mean(shares), error, statistics.mean(passes), *by_kind)


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
    parser.add_argument("--puzzles", type=int, default=100, help="of each seed")
    parser.add_argument("--write", action="store_true", help="write the table and the plot into the docs")
    given = parser.parse_args()
    engine, tokenizer = Diffusion(MODEL, device="cpu"), Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    results = []
    for family, specs in FAMILIES.items():
        for spec in specs:
            results.append(measured(family, spec, engine, tokenizer, given.puzzles))
            print(results[-1], flush=True)
    print(table(results))
    if given.write:
        PLOT.parent.mkdir(exist_ok=True)
        PLOT.write_text(plot(results), "utf-8")
        text = PAGE.read_text("utf-8")
        place = re.compile(r"(<!-- samplers -->\n).*?(\n<!-- end -->)", re.S)
        PAGE.write_text(place.sub(lambda found: found[1] + table(results) + found[2], text), "utf-8")


if __name__ == "__main__":
    main()
