"""`localspec bench`: plain decoding against drafts and other programs, by turns on the same weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import console, options
from localspec.errors import BadValue

if TYPE_CHECKING:
    from localspec.bench.backends import Contender

HELP = """Measure plain decoding against drafts, and against other programs, on the same weights.

Every contender answers every prompt, by turns; prefill and decode are timed apart. A speed-up is the
geometric mean over prompts with the interval that holds the true one in 19 of 20 cases, and none is shown for
a text that is not the plain one up to near ties. Ctrl-C ends it early and reports what was measured."""
EPILOG = """Examples:

  localspec bench smollm2-135m --suite quick

  localspec bench qwen2.5-coder-1.5b --draft ngram --suite code-edit --html report.html

  localspec bench qwen2.5-coder-1.5b --against genai,llamacpp --json new.json --compare old.json"""


def bench(
    model: Annotated[str, typer.Argument(help="Which model to measure.")],
    draft: Annotated[
        list[str] | None, typer.Option(help="A contender; may be repeated.", show_default="auto")
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="A suite's name, or a file; may be repeated.", show_default="quick"),
    ] = None,
    against: Annotated[str, typer.Option(help="Others, by commas: genai, llamacpp, transformers.")] = "plain",
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions of each prompt.")] = 3,
    tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 64,
    draft_length: options.DraftLengthPolicy = "adaptive",
    engine: options.Engine = "auto",
    device: options.Device = None,
    threads: options.Threads = None,
    as_json: Annotated[
        Path | None,
        typer.Option("--json", help="Write the report as JSON; `-` prints it.", show_default=False),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots.", show_default=False)] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Show what changed since this report.", show_default=False)
    ] = None,
) -> None:
    """Measure and report."""
    from localspec.bench import comparison, page, report, runner, setup, suites
    from localspec.drafting.pass_costs import curves
    from localspec.library import Library, Terminal
    from localspec.library.storage import write_whole
    from localspec.runtime.resolution import Choice

    prompts = [prompt for name in suite or [suites.QUICK] for prompt in suites.load(name)]
    before = comparison.read(compare) if compare else None
    for path in (as_json, html):
        if path and str(path) != "-" and not path.absolute().parent.is_dir():
            raise BadValue(f"There is no folder `{path.absolute().parent}`", "Make it first")
    choice = Choice(engine, draft_length=draft_length, device=device, threads=threads)
    choice.check()
    others = [name.strip() for name in against.split(",") if name.strip()]
    racing: list[Contender] = []
    try:
        with Terminal() as progress:
            racing, plain, absent = setup.field(model, choice, draft or ["auto"], others, Library(), progress)
            measured = runner.run(
                racing,
                prompts,
                plain.model,
                plain.engine,
                tokens=tokens,
                repeat=repeat,
                step=progress.step,
            )
            measured.failed |= absent
            facts = {
                "model": {"name": plain.model.name, "precision": plain.model.manifest.precision},
                "engine": {"spec": str(plain.engine_spec), "device": plain.engine.device},
                "options": {"tokens": tokens, "repeat": repeat, "prompts": len(prompts)},
                "pass_milliseconds": curves(plain.engine) if measured.finished else {},
            }
        found = report.report(measured, racing, facts)
    finally:
        for one in racing:
            one.close()
    text = json.dumps(found, indent=1)
    if as_json and str(as_json) != "-":
        write_whole(as_json, text + "\n")
    if html:
        write_whole(html, page.page(found))
    if str(as_json) == "-":
        print(text)
        return
    print(table(found))
    if before is not None:
        print("\n" + comparison.in_words(before, found))
    if not found["finished"]:
        console.say("Interrupted: the numbers are of what was measured until then")
        sys.exit(130)


def table(found: dict[str, Any]) -> str:
    """Return the report as lines: a row a contender, then one for each of its classes."""
    head = f"{found['model']['name']} ({found['model']['precision']}) on {found['engine']['spec']}"
    lines = [
        f"{head}, {found['options']['prompts']} prompts x {found['options']['repeat']}",
        "",
        f"{'':<34} {'prompt/s':>9} {'tokens/s':>9} {'speed-up':>9} {'interval':>13}"
        f" {'a pass':>7} {'stood':>6}",
    ]
    for row in found["summary"]:
        lines.append(_row(row["contender"], row))
        lines += [
            f"  {name} guessed {share['drafted']}, {share['accepted'] / share['drafted']:.0%} stood"
            for name, share in row["sources"].items()
        ]
        if len(row["classes"]) > 1:
            lines += [_row(f"  {one['suite']}: {one['class']}", one) for one in row["classes"]]
    for one in found["contenders"]:
        if one["failed"]:
            lines.append(f"{one['name']:<34} {one['failed']}")
    lines += [f"{name:<34} {why}" for name, why in found["absent"].items()]
    lines += [f"left out: {line}" for line in found["skipped"]]
    return "\n".join(lines)


def _row(name: str, row: dict[str, Any]) -> str:
    ratio, rates = row["speed_up"], (row["prompt_tokens_per_second"], row["tokens_per_second"])
    parts = [f"{name:<34.34}", *(f"{rate['median']:>9.1f}" if rate else f"{'':>9}" for rate in rates)]
    if ratio:
        parts += [f"{ratio['value']:>9.2f}", f"{ratio['low']:>6.2f}-{ratio['high']:<6.2f}"]
    else:
        parts += [f"{'' if row['same_text'] else 'other text':>10}", f"{'':>12}"]
    parts.append(f"{row['tokens_per_pass']:>7.2f}" if row["tokens_per_pass"] else f"{'':>7}")
    parts.append(f"{row['accepted'] / row['drafted']:>6.0%}" if row["drafted"] else "")
    return " ".join(parts).rstrip()
