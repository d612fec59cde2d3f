"""`localspec tune`: the best setting for a model on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from localspec.cli import console

HELP = """Find the setting that answers fastest on this machine, and let `localspec chat` use it.

Engines, precisions, drafts, depths and threads are tried against the default, prompt by prompt; the best is
confirmed on new measurements. It is kept only if it is faster beyond doubt and writes the same text. Ctrl-C
ends it early; a later run goes on where it stopped."""
EPILOG = "Example: localspec tune qwen2.5-coder-1.5b --minutes 10"


def tune(
    model: Annotated[str, typer.Argument(help="Which model to tune.")],
    minutes: Annotated[float, typer.Option(min=0.1, help="About how long.")] = 10.0,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="A suite's name, or a file; may be repeated.", show_default="quick"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search, keep the winner, and show what was tried."""
    from localspec.bench import suites
    from localspec.bench.tune import Tuner
    from localspec.library import Library, Terminal

    prompts = [prompt for name in suite or [suites.QUICK] for prompt in suites.load(name)]
    with Terminal() as progress:
        tuner = Tuner(model, prompts, Library(), progress, seconds=60 * minutes)
        found = tuner.run()
        tuner.keep(found)
    values = found.as_values()
    print(json.dumps(values, indent=2) if as_json else in_words(values))
    if not found.finished:
        console.say("Interrupted: type it again to go on")
        sys.exit(130)


def in_words(values: dict[str, Any]) -> str:
    """Return what was tried, best first, the winner, and what would help next."""
    tried = [one for one in values["tried"] if one["ratio"] and not one["fault"]]
    lines = ["times the default, by a few prompts"]
    for one in sorted(tried, key=lambda one: -one["ratio"]["value"]):
        ratio = one["ratio"]
        lines.append(f"  {ratio['value']:5.2f}  {one['setting']}  ({ratio['prompts']} prompts)")
    lines += [f"  out    {one['setting']}: {one['fault']}" for one in values["tried"] if one["fault"]]
    left = sum(1 for one in values["tried"] if not one["ratio"] and not one["fault"])
    if left:
        lines.append(f"  {left} settings were not reached")
    winner, gain = values["winner"], values["gain"]
    if winner:
        interval = f"{gain['low']:.2f} to {gain['high']:.2f}"
        setting = " ".join(f"{name}={value}" for name, value in winner.items() if value not in (None, False))
        lines += ["", f"kept: {setting}", f"{gain['value']:.2f} times as fast as the default ({interval})"]
    else:
        lines += ["", "The default stays: nothing was faster beyond doubt"]
    return "\n".join(lines + [f"hint: {line}" for line in values["advice"]])
