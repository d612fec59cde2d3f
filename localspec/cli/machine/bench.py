"""`localspec bench`: measure plain decoding against drafts and other programs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import completion, console, options
from localspec.cli.machine.bench_table import format_table
from localspec.errors import BadValue

if TYPE_CHECKING:
    from localspec.bench.suites import Prompt
    from localspec.runtime.choice import Choice

HELP = """Measure plain decoding against drafts, and against other programs, on the same weights.

Every backend answers every prompt, in turns; prefill and decode are timed apart. A speed-up is the geometric
mean over prompts with its 95 % confidence interval; none is shown for a text that differs from the plain one
by more than near ties. Ctrl-C ends the benchmark early and reports what was measured."""
EPILOG = """Examples:

  localspec bench smollm2-135m --suite quick

  localspec bench qwen2.5-coder-1.5b --draft ngram --html report.html

  localspec bench qwen2.5-coder-1.5b --against genai,llamacpp

  localspec bench qwen2.5-coder-1.5b --json new.json --compare old.json"""


PANELS = {
    options.DRAFT: ("draft", "draft_length", "verifier", "sampler"),
    "Measurement": ("suite", "against", "repeat", "tokens", "temperature"),
    options.MACHINE: ("engine", "device", "threads"),
    options.OUTPUT: ("as_json", "html", "compare"),
}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Arguments and options of `localspec bench`, in the order of its help."""

    model: Annotated[
        str, typer.Argument(help="Model to measure.", autocompletion=completion.models, metavar="MODEL")
    ]
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="Draft to measure; may be repeated.",
            autocompletion=completion.drafts,
            metavar="SPEC",
            show_default="auto",
        ),
    ] = None
    suite: options.Suites = None
    against: Annotated[
        str, typer.Option(help="Baselines: plain,genai,llamacpp,transformers.", metavar="LIST")
    ] = "plain"
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Repetitions of each prompt.")] = 3
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Maximum tokens of an answer.")] = 64
    temperature: Annotated[
        float, typer.Option(min=0, metavar="X", help="Sample, all with the same noise.")
    ] = 0.0
    draft_length: Annotated[
        list[str] | None,
        typer.Option(
            help="How far to draft; may be repeated.",
            autocompletion=completion.policies,
            metavar="SPEC",
            show_default="adaptive",
        ),
    ] = None
    verifier: options.Verifier = "exact"
    sampler: options.Sampler = None
    engine: options.Engine = "auto"
    device: options.Device = None
    threads: options.Threads = None
    as_json: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write the report as JSON; `-` prints it.", show_default=False, metavar="FILE"
        ),
    ] = None
    html: Annotated[
        Path | None,
        typer.Option(help="Write the report as a page with plots.", show_default=False, metavar="FILE"),
    ] = None
    compare: Annotated[
        Path | None,
        typer.Option(help="Show what changed since this report.", show_default=False, metavar="FILE"),
    ] = None

    @property
    def baselines(self) -> list[str]:
        """The names of the baselines."""
        return [name.strip() for name in self.against.split(",") if name.strip()]

    @property
    def prints_json(self) -> bool:
        """Return whether the report goes to stdout as JSON."""
        return str(self.as_json) == "-"

    @property
    def files(self) -> list[Path]:
        """The files that the report is written to."""
        return [path for path in (None if self.prints_json else self.as_json, self.html) if path]

    def check_places(self) -> None:
        """Raise BadValue if the folder of an output file does not exist."""
        for path in self.files:
            if not path.absolute().parent.is_dir():
                raise BadValue(f"No such folder: `{path.absolute().parent}`", "Make it first")


@options.panels(PANELS)
@options.command
def bench(given: BenchOptions) -> None:
    """Measure, and write or print the report."""
    from localspec.bench import comparison, setup, suites
    from localspec.runtime.choice import Choice

    prompts = [prompt for name in given.suite or [suites.QUICK] for prompt in suites.load(name)]
    before = comparison.read_report(given.compare) if given.compare else None
    given.check_places()
    choice = Choice(
        given.engine,
        verifier=given.verifier,
        device=given.device,
        threads=given.threads,
        sampler=given.sampler,
    )
    measured = setup.variants(
        choice, given.draft or [choice.draft], given.draft_length or [choice.draft_length]
    )
    report = measure(given, choice, measured, prompts)
    write_files(report, given)
    if given.prints_json:
        console.print_json(report, indent=1)
        return
    console.print_text(format_table(report, given.files))
    if before is not None:
        console.print_text("\n" + comparison.format_comparison(before, report))
    if not report["finished"]:
        console.say("Interrupted: this is what was measured by then")
        sys.exit(130)


def measure(
    given: BenchOptions, choice: Choice, drafts: dict[str, Choice], prompts: list[Prompt]
) -> dict[str, Any]:
    """Load the backends, run the benchmark and return its report."""
    from localspec.bench import runner, setup
    from localspec.bench.report import report
    from localspec.cli.progress import Terminal
    from localspec.core.sampler import Sampling
    from localspec.drafting.pass_costs import curves
    from localspec.library import Library

    with Terminal() as progress:
        sampling = Sampling(given.temperature) if given.temperature else None
        loaded = setup.load(given.model, choice, drafts, given.baselines, Library(), progress, sampling)
        model, engine = loaded.plain.model, loaded.plain.engine
        try:
            measured = runner.run(
                loaded.backends,
                prompts,
                model,
                engine,
                tokens=given.tokens,
                repeat=given.repeat,
                progress=progress,
            )
            measured.failed |= loaded.absent
            facts = {
                "model": {"name": model.name, "precision": model.manifest.precision},
                "engine": {"spec": str(loaded.plain.resolution.target.spec), "device": engine.device},
                "options": {
                    "tokens": given.tokens,
                    "repeat": given.repeat,
                    "prompts": len(prompts),
                    "temperature": given.temperature,
                },
                "pass_milliseconds": curves(engine) if measured.finished else {},
            }
            return report(measured, loaded.backends, facts)
        finally:
            loaded.close()


def write_files(report: dict[str, Any], given: BenchOptions) -> None:
    """Write the report to the files that were asked for."""
    from localspec.bench.page import page
    from localspec.library.storage import write_atomically

    if given.as_json and not given.prints_json:
        write_atomically(given.as_json, json.dumps(report, indent=1) + "\n")
    if given.html:
        write_atomically(given.html, page(report))
