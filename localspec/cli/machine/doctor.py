"""`localspec doctor`: versions, and whether a model is sound and quick on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from localspec.cli import options
from localspec.cli.machine.devices import size

HELP = """Check this machine, and a model with its draft on it.

Without MODEL it prints versions and devices. With one it loads it and finds out whether a rewind holds,
whether the draft leaves the text as it is, whether the device agrees with the CPU, and what a pass costs.
What it finds is kept, and `--draft auto` goes by it. The exit code is 1 when something changes the text."""
EPILOG = """Examples:

  localspec doctor smollm2-135m

  localspec doctor qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b --json"""


def doctor(
    model: Annotated[str | None, typer.Argument(help="Which model to check.", show_default=False)] = None,
    draft: Annotated[str, typer.Option(help="Who guesses, as for `localspec chat`.")] = "auto",
    engine: options.Engine = "auto",
    device: options.Device = None,
    threads: options.Threads = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print what is found out."""
    from localspec import devices
    from localspec.doctor import examine
    from localspec.library import Library, Terminal
    from localspec.runtime.resolution import Choice

    found: dict[str, Any] = {"versions": devices.versions(), "machine": devices.as_values()}
    if model is not None:
        choice = Choice(engine, draft, device=device, threads=threads)
        choice.check()
        with Terminal() as progress:
            found["model"] = examine(model, choice, Library(), progress)
    print(json.dumps(found, indent=2) if as_json else in_words(found))
    if model is not None and not found["model"]["sound"]:
        sys.exit(1)


def in_words(found: dict[str, Any]) -> str:
    """Return the lines that are printed without `--json`."""
    from localspec.cli.machine import devices

    lines = [f"{name:<16} {number or 'not installed'}" for name, number in found["versions"].items()]
    lines += ["", devices.in_words(found["machine"])]
    return "\n".join([*lines, "", *_model(found["model"])] if "model" in found else lines)


def _model(found: dict[str, Any]) -> list[str]:
    fault, memory = found["rewind"]["fault"], found["memory"]
    kept = " and ".join(map(str, found["rewind"]["kept"]))
    lines = [
        f"{found['model']} ({found['precision'] or 'precision unknown'})",
        f"  engine        {found['engine']} on {found['device']}: {found['engine_reason']}",
        f"  loads         in {found['load_seconds']} s",
        f"  rewind        {f'fails: {fault}' if fault else f'holds after {kept} tokens'}",
        f"  draft         {found['draft']}: {_verdict(found['texts'], 'leaves the text as it is')}",
    ]
    if found["cpu"] is not None:
        lines.append(f"  device        {_verdict(found['cpu'], 'agrees with the CPU')}")
    for context, times in found["pass_milliseconds"].items():
        costs = ", ".join(f"{width}: {spent}" for width, spent in times.items())
        lines.append(f"  pass          ms by its tokens, after {context} tokens: {costs}")
    if found["draft_ratio"] is not None:
        lines.append(f"  a guess       costs {found['draft_ratio']} of a one-token pass")
    lines.append(
        f"  memory        about {size(memory['total'])} with a text of {memory['cache_tokens']} tokens"
        f" (weights {size(memory['target'])} and {size(memory['draft'])},"
        f" caches {size(memory['target_cache'])} and {size(memory['draft_cache'])}),"
        f" {size(memory['free'])} free"
    )
    return lines


def _verdict(texts: list[dict[str, Any]], good: str) -> str:
    """Return one line on a comparison of answers: the first that is not the same, else the near ties."""
    for text in texts:
        if not text["same"]:
            where = f"token {text['differs_at']}, a gap of {text['gap']} logits"
            return f"CHANGES the text ({where}): {text['prompt']}"
    ties = [text for text in texts if "differs_at" in text]
    tokens = sum(text["tokens"] for text in texts)
    if not ties:
        return f"{good}, {tokens} tokens of {len(texts)} answers"
    gap = max(text["gap"] for text in ties)
    return f"{good} up to near ties ({len(ties)} of {len(texts)} answers, the widest {gap} logits)"
