"""`localspec train-head`: train a head that drafts for a model from its hidden states."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from localspec.cli import completion, console, options
from localspec.cli.drafts.format_card import format_head
from localspec.cli.drafts.prompts import read_prompts
from localspec.errors import UnknownName

LOSSES = ("tv", "ce")

PANELS = {
    options.MODEL: ("name",),
    options.DRAFT: ("minutes", "depth", "vocab", "intermediate", "mtp", "loss", "seed", "prompts"),
    options.MACHINE: ("device",),
    options.OUTPUT: ("as_json",),
}

HELP = """Train a head for MODEL: one layer that reads its hidden states and guesses several tokens in a row.

The model writes texts by itself, and the head learns to continue them; the model stays as it is. The head is
added to the library, and `--draft auto` uses it if it makes MODEL faster. An interrupted training resumes.
It needs torch; a GPU trains in minutes what takes a processor hours."""
EPILOG = """Examples:

  localspec train-head qwen2.5-coder-1.5b --minutes 20

  localspec train-head smollm2-135m --minutes 5 --vocab 8192 --intermediate 512"""

Target = Annotated[
    str,
    typer.Argument(help="Target model of the head.", autocompletion=completion.models, metavar="MODEL"),
]
Minutes = Annotated[float, typer.Option(help="Time limit, writing texts included.", min=0.05, metavar="N")]
Name = Annotated[
    str | None, typer.Option(help="Name in the library.", metavar="NAME", show_default="MODEL-head")
]
Device = Annotated[str, typer.Option(help="Torch device: auto, cpu, cuda or cuda:1.", metavar="NAME")]
Depth = Annotated[int, typer.Option(help="Guesses in a row to train.", min=1, max=7, metavar="N")]
Vocabulary = Annotated[int, typer.Option(help="Tokens that it can guess.", min=1, metavar="N")]
Intermediate = Annotated[int, typer.Option(help="Width of its MLP, 0 for MODEL's.", min=0, metavar="N")]
Deep = Annotated[bool, typer.Option("--mtp", help="Read the last layer alone.")]
Loss = Annotated[str, typer.Option(help="tv (accepted guesses) or ce (cross-entropy).", metavar="NAME")]
Seed = Annotated[int, typer.Option(help="Seed of the random generator.", min=0, metavar="N")]


@options.panels(PANELS)
def train_head(
    model: Target,
    minutes: Minutes = 20.0,
    name: Name = None,
    device: Device = "auto",
    depth: Depth = 3,
    vocab: Vocabulary = 32768,
    intermediate: Intermediate = 0,
    mtp: Deep = False,
    loss: Loss = "tv",
    seed: Seed = 0,
    prompts: options.CalibrationPrompts = None,
    as_json: options.AsJsonCard = False,
) -> None:
    """Train the head and print its card."""
    from localspec.build import HeadBuild, build_head, card
    from localspec.cli.progress import Terminal
    from localspec.library import Library
    from localspec.training.head_training import HeadPlan

    if loss not in LOSSES:
        raise UnknownName(f"Unknown loss `{loss}`", loss, LOSSES)
    plan = HeadPlan(
        seconds=minutes * 60,
        depth=depth,
        kept=vocab,
        inner=intermediate,
        deep=mtp,
        loss=loss,
        seed=seed,
    )
    library, calibration = Library(), read_prompts(prompts)
    with Terminal() as progress:
        build = HeadBuild(name or f"{model.rsplit('/', 1)[-1]}-head", model, plan, device)
        built = build_head(build, calibration, library, progress)
    values = card(built)
    console.print_text(json.dumps(values, ensure_ascii=False) if as_json else format_head(built.name, values))
