"""`localspec find-mask`: find the sub-blocks that a smaller pass of a model leaves out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from localspec.cli import completion, console, options

HELP = """Find which attentions and MLPs a smaller pass of MODEL leaves out.

Such a pass checks drafts with `--draft cascade:middle=mask`. The model answers prompts, and masks are tried
on the answers: at random, and now and then by Bayesian optimization. The best one is kept for the model.
The command tells how often the smaller pass agrees with the whole model, what it costs, and whether a
middle tier of it helps a draft. It needs torch."""
EPILOG = "Example: localspec find-mask qwen2.5-coder-0.5b --steps 40"


@options.panels(
    {
        options.DRAFT: ("ratio", "steps", "draft"),
        options.MACHINE: ("device", "threads"),
        options.OUTPUT: ("as_json",),
    }
)
def find_mask(
    model: Annotated[
        str, typer.Argument(help="Model to search.", autocompletion=completion.models, metavar="MODEL")
    ],
    ratio: Annotated[
        float, typer.Option(min=0.01, max=0.95, help="Share of sub-blocks to leave out.", metavar="X")
    ] = 0.45,
    steps: Annotated[int, typer.Option(min=1, help="Maximum masks to try.", metavar="N")] = 60,
    draft: Annotated[
        str,
        typer.Option(help="Draft below the middle tier.", autocompletion=completion.drafts, metavar="SPEC"),
    ] = "hybrid",
    suite: options.Suites = None,
    device: options.Device = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Search, keep the mask, and show what was measured."""
    from localspec.bench import suites
    from localspec.bench.tuning.mask_finder import MaskFinder, choice_for
    from localspec.cli.progress import Terminal
    from localspec.library import Library

    choice = choice_for(draft, device, threads)
    choice.check()
    prompts = [prompt for name in suite or [suites.QUICK] for prompt in suites.load(name)]
    with Terminal() as progress:
        finder = MaskFinder(model, choice, prompts, Library(), progress)
        found = finder.find(ratio, steps)
        finder.keep(found)
    values = found.as_values()
    if as_json:
        console.print_json(values)
    else:
        console.print_text(format_mask(model, values))


def format_mask(model: str, values: dict[str, Any]) -> str:
    """Return what was found of a mask as lines, and what to type next."""
    gain, words = values["gain"], ("helps", "does not help")
    verdict = "no guess to compare" if gain is None else f"{gain:+.3f}, it {words[gain <= 0]}"
    costs = f"{values['cost']:.3f}, the median of {values['tried']} masks {values['median_cost']:.3f}"
    return "\n".join(
        [
            f"kept: {values['mask']}",
            f"  cost         {costs}",
            f"  agreement    {values['agreement']:.0%} of {values['tokens']} tokens of the model's own text",
            f"  pass         {values['pass_ratio']:.2f} of a whole one",
            f"  middle tier  above `{values['draft']}`: {verdict}",
            f"hint: localspec chat {model} --engine torch --draft cascade:middle=mask",
        ]
    )
