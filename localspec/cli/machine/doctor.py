"""`localspec doctor`: check this machine, and a model with its draft on it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from localspec.cli import completion, console, options
from localspec.cli.sizes import format_gigabytes

HELP = """Check this machine, and a model with its draft on it.

Without MODEL the command prints versions and devices, and looks for faults of the installation and the
library. With one it also loads the model and checks that rewinds are exact, that the draft does not change
the text, and that the device agrees with the CPU; it measures what a pass costs and whether the draft pays.
The results are kept, and `--draft auto` uses them; of a file that is not in the library nothing is kept. The
end is `OK`, or a line on each thing that is wrong and what to do; then the exit code is 1."""
EPILOG = """Examples:

  localspec doctor smollm2-135m

  localspec doctor qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b --json"""


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(help="Model to check.", autocompletion=completion.models, show_default=False),
    ] = None,
    draft: options.Draft = "auto",
    engine: options.Engine = "auto",
    device: options.Device = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the results of the checks."""
    from localspec import devices
    from localspec.cli.progress import Terminal
    from localspec.doctor import check_machine, check_model, faults
    from localspec.library import Library
    from localspec.library.importing.visit import visited
    from localspec.runtime.choice import Choice

    library = Library()
    values: dict[str, Any] = {"versions": devices.versions(), "machine": devices.as_values()}
    findings = check_machine(library)
    if model is not None:
        choice = Choice(engine, draft, device=device, threads=threads)
        choice.check()
        with Terminal() as progress, visited(library, model) as own:
            record = check_model(model, choice, own, progress)
        values["model"] = record if own is library else record | {"model": model}
        findings += faults(values["model"])
    values["findings"] = [finding._asdict() for finding in findings]
    if as_json:
        console.print_json(values, indent=2)
    else:
        console.print_text(format_report(values))
    if findings:
        sys.exit(1)


def format_report(values: dict[str, Any]) -> str:
    """Return the lines that are printed without `--json`."""
    from localspec.cli.machine.devices import format_devices

    lines = [f"{name:<16} {version or 'not installed'}" for name, version in values["versions"].items()]
    lines += ["", format_devices(values["machine"])]
    lines += ["", *format_model(values["model"])] if "model" in values else []
    return "\n".join([*lines, "", *format_verdict(values)])


def format_verdict(values: dict[str, Any]) -> list[str]:
    """Return a line for each finding, or OK; with a model it says whether drafting pays."""
    from localspec.doctor import verdict

    if findings := values["findings"]:
        return [f"Not OK: {finding['problem']}. {finding['action']}" for finding in findings]
    return [f"OK. {verdict(values['model'])}" if "model" in values else "OK"]


def format_model(record: dict[str, Any]) -> list[str]:
    """Return the results of a model's checks as lines."""
    fault = record["rewind"]["fault"]
    lengths = " and ".join(map(str, record["rewind"]["lengths"]))
    lines = [
        f"{record['model']} ({record['precision'] or 'precision unknown'})",
        f"  engine        {record['engine']} on {record['device']}: {record['engine_reason']}",
        f"  load time     {record['load_seconds']} s",
        f"  rewind        {f'FAILS: {fault}' if fault else f'exact after {lengths} tokens'}",
        f"  draft         {record['drafter']}: {format_parity(record['draft_parity'], 'same text')}",
    ]
    if record["cpu_parity"] is not None:
        lines.append(f"  device        {format_parity(record['cpu_parity'], 'agrees with the CPU')}")
    for context, times in record["pass_milliseconds"].items():
        costs = ", ".join(f"{width}: {time}" for width, time in times.items())
        lines.append(f"  pass          ms by its tokens, after {context} tokens: {costs}")
    if record["draft_cost_ratio"] is not None:
        lines.append(f"  draft token   costs {record['draft_cost_ratio']} of a one-token pass")
    return [*lines, format_memory(record["memory"])]


def format_memory(memory: dict[str, Any]) -> str:
    """Return the line on memory."""
    size = {name: format_gigabytes(count) for name, count in memory.items() if name != "cache_tokens"}
    return (
        f"  memory        about {size['total']} for {memory['cache_tokens']} tokens of context"
        f" (weights {size['target']} and {size['draft']},"
        f" KV caches {size['target_cache']} and {size['draft_cache']}), {size['free']} free"
    )


def format_parity(answers: list[dict[str, Any]], success: str) -> str:
    """Return the first different answer as a line, or else `success` with the number of near ties."""
    for answer in answers:
        if not answer["same"]:
            place = f"token {answer['differs_at']}, a gap of {answer['gap']} logits"
            return f"DIFFERENT TEXT ({place}): {answer['prompt']}"
    ties = [answer for answer in answers if "differs_at" in answer]
    if not ties:
        tokens = sum(answer["tokens"] for answer in answers)
        return f"{success}, {tokens} tokens of {len(answers)} answers"
    gap = max(answer["gap"] for answer in ties)
    return f"{success} up to near ties ({len(ties)} of {len(answers)} answers, the largest {gap} logits)"
