"""Run `localspec bench` again and again: does plain against plain say 1.00, and do runs agree?

    python tests/perf/again.py MODEL [--runs 20] [--draft SPEC] [bench options ...]

Each run is a process of its own with plain decoding, plain decoding once more (`off`) and a draft. Prints how
many intervals of plain against plain contain 1, and by how much two runs disagree about the draft's ratio.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import combinations
from statistics import median
from typing import Any


def run(model: str, draft: str, others: list[str]) -> dict[str, Any]:
    """Return the speed-ups of one run of bench by backend."""
    command = [sys.executable, "-m", "localspec", "bench", model, "--draft", "off", "--draft", draft]
    found = subprocess.run(
        [*command, "--json", "-", *others], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return {row["backend"]: row["speedup"] for row in json.loads(found)["summary"]}


def apart(ratios: list[float]) -> list[float]:
    """Return by how much each two runs disagree, as a share of the smaller one, ascending."""
    return sorted(max(pair) / min(pair) - 1 for pair in combinations(ratios, 2))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--draft", default="hybrid")
    options, others = parser.parse_known_args()
    same, drafted = [], []
    for number in range(options.runs):
        found = run(options.model, options.draft, others)
        same.append(found["off"])
        drafted.append(found[options.draft])
        print(f"{number + 1}: {found}", file=sys.stderr)
    within = sum(one["low"] <= 1 <= one["high"] for one in same)
    ratios = [one["value"] for one in drafted if one]
    print(f"plain against plain: {within} of {len(same)} intervals contain 1")
    print(f"  ratios {min(one['value'] for one in same):.3f} to {max(one['value'] for one in same):.3f}")
    between = apart(ratios)
    print(f"{options.draft}: median {median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")
    print(f"  in {len(ratios)} runs, of which two differ by {median(between):.1%} in the median")
    print(f"  and by at most {between[int(0.95 * len(between))]:.1%} in 19 of 20 pairs")


if __name__ == "__main__":
    main()
