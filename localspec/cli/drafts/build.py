"""`localspec build`: a draft by a recipe."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from localspec.cli import options
from localspec.cli.drafts.prune_draft import in_words, read

HELP = """Build a draft by a recipe: a name of those that are shipped, or a TOML file.

It says which model is cut for which, and by which steps; `localspec parts` lists the steps. What it will take
is said before it starts. A build that was killed goes on where it stopped."""
EPILOG = "Example: localspec build smollm2-135m"


def build(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or a file.")],
    name: Annotated[str | None, typer.Option(help="What it is called.", show_default="the recipe's")] = None,
    prompts: options.Prompts = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print its card as JSON.")] = False,
) -> None:
    """Build what the recipe says and print its card."""
    from localspec.build import Plan, card, recipes
    from localspec.build import build as make
    from localspec.library import Library, Terminal

    found = recipes.load(recipe)
    plan = Plan(name or found.name, found.target, found.source, found.steps, draft=found.draft)
    plan.check()
    asked = read(prompts)
    with Terminal() as progress:
        needs = found.needs
        seen = "" if needs.measured else ", by estimate"
        progress.say(
            f"{found.about} It takes about {needs.minutes:g} minutes, {needs.memory / 1e9:.1f} GB of memory"
            f" and {needs.disk / 1e9:.1f} GB of disk{seen}"
        )
        built = make(plan, asked, Library(), progress)
    shown = card(built)
    print(json.dumps(shown, ensure_ascii=False) if as_json else in_words(built.name, plan.target, shown))
