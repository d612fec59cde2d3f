"""`localspec build`: build a draft from a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from localspec.cli import completion, console, options
from localspec.cli.drafts.format_card import format_card
from localspec.cli.drafts.prompts import read_prompts

HELP = """Build a draft from a recipe: the name of a shipped one, or a TOML file.

A recipe names the target, the model to prune, and the steps; `localspec parts` lists the steps. The command
shows the time, memory and disk that the build needs before it starts, and resumes an interrupted build."""
EPILOG = "Example: localspec build smollm2-135m"


def build(
    recipe: Annotated[
        str, typer.Argument(help="Name of a recipe, or a file.", autocompletion=completion.recipes)
    ],
    name: Annotated[
        str | None, typer.Option(help="Name in the library.", show_default="the recipe's")
    ] = None,
    prompts: options.CalibrationPrompts = None,
    as_json: options.AsJsonCard = False,
) -> None:
    """Build the draft and print its card."""
    from localspec.build import BuildPlan, card, recipes
    from localspec.build import build as make
    from localspec.cli.progress import Terminal
    from localspec.library import Library

    loaded = recipes.load(recipe)
    plan = BuildPlan(
        *(name or loaded.name, loaded.target, loaded.source, loaded.steps),
        draft=loaded.draft,
        minutes=loaded.needs.minutes,
    )
    plan.check()
    calibration = read_prompts(prompts)
    with Terminal() as progress:
        needs = loaded.needs
        estimated = "" if needs.measured else ", an estimate"
        progress.say(
            f"{loaded.about} It takes about {needs.minutes:g} minutes, {needs.memory / 1e9:.1f} GB of memory"
            f" and {needs.disk / 1e9:.1f} GB of disk{estimated}"
        )
        built = make(plan, calibration, Library(), progress)
    values = card(built)
    if as_json:
        console.print_json(values)
    else:
        console.print_text(format_card(built.name, plan.target, values))
