"""`localspec tune`: find the fastest parts for a model on this machine."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from localspec.bench.wording import counted
from localspec.cli import completion, console, options

HELP = """Find the parts that answer fastest on this machine, and let `localspec chat` use them.

Engines, precisions, drafts, draft lengths and thread counts are measured against the default, prompt by
prompt, and the best is confirmed in new measurements. It is kept only if it is faster beyond doubt and writes
the same text. Ctrl-C ends the search early; a later run continues it."""
EPILOG = "Example: localspec tune qwen2.5-coder-1.5b --minutes 10"


def tune(
    model: Annotated[str, typer.Argument(help="Model to tune.", autocompletion=completion.models)],
    minutes: Annotated[float, typer.Option(min=0.1, help="Duration, kept within a tenth.")] = 10.0,
    suite: options.Suites = None,
    as_json: options.AsJson = False,
) -> None:
    """Search, keep the winner, and show the candidates."""
    from localspec.bench import suites
    from localspec.bench.tuning.tuner import Tuner
    from localspec.cli.progress import Terminal
    from localspec.library import Library

    prompts = [prompt for name in suite or [suites.QUICK] for prompt in suites.load(name)]
    with Terminal() as progress:
        tuner = Tuner(model, prompts, Library(), progress, seconds=60 * minutes)
        progress.say(f"The search takes about {minutes:g} minutes; Ctrl-C ends it early")
        tuning = tuner.run()
        tuner.keep(tuning)
    values = tuning.as_values()
    if as_json:
        console.print_json(values, indent=2)
    else:
        console.print_text(format_tuning(model, values))
    if not tuning.finished:
        console.say("Interrupted: run the same command again to continue")
        sys.exit(130)


def format_tuning(model: str, values: dict[str, Any]) -> str:
    """Return the candidates, the fastest first, then what was gained, and what to type next."""
    rejected = [candidate for candidate in values["candidates"] if candidate["rejected"]]
    others = [candidate for candidate in values["candidates"] if not candidate["rejected"]]
    measured = [candidate for candidate in others if candidate["speedup"]]
    lines = ["speed-up over the default, on a few prompts"]
    for candidate in sorted(measured, key=lambda candidate: -candidate["speedup"]["value"]):
        ratio = candidate["speedup"]
        lines.append(
            f"  {ratio['value']:5.2f}  {candidate['options']}  ({counted(ratio['prompts'], 'prompt')})"
        )
    lines += [f"  out    {candidate['options']}: {candidate['rejected']}" for candidate in rejected]
    if len(others) > len(measured):
        left = len(others) - len(measured)
        lines.append(f"  {counted(left, 'candidate')} {'was' if left == 1 else 'were'} not reached")
    lines += ["", *format_winner(values["winner"], values["speedup"])]
    advice = [*values["advice"], next_command(model, values)]
    return "\n".join(lines + [f"hint: {line}" for line in advice])


def next_command(model: str, values: dict[str, Any]) -> str:
    """Return what to type next: a longer search if candidates were left, else a conversation."""
    left = [each for each in values["candidates"] if not (each["rejected"] or each["speedup"])]
    if values["winner"] is None and left:
        return f"localspec tune {model} --minutes 30  # for the candidates that were not reached"
    uses = "uses what was found" if values["winner"] else "goes on with the default"
    return f"localspec chat {model}  # {uses}"


def format_winner(winner: dict[str, Any] | None, speedup: dict[str, Any] | None) -> list[str]:
    """Return the winner with its confirmed speed-up as lines."""
    if winner is None or speedup is None:
        return ["The default stays: nothing was faster beyond doubt"]
    parts = " ".join(f"{name}={value}" for name, value in winner.items() if value not in (None, False))
    interval = f"{speedup['low']:.2f} to {speedup['high']:.2f}"
    return [f"kept: {parts}", f"{speedup['value']:.2f} times as fast as the default ({interval})"]
