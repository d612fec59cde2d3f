"""`localspec train-head`: train a head that drafts for a model from its hidden states."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from localspec.cli import completion, console, options
from localspec.cli.drafts.format_card import format_head, format_hints, format_pairs
from localspec.cli.drafts.prompts import read_prompts
from localspec.errors import BadValue, UnknownName

LOSSES = ("tv", "ce")
EAGLE, K_FORCING, PIPO = "eagle3", "k-forcing", "pipo"
KINDS = (EAGLE, K_FORCING, PIPO)
FORMATS = {EAGLE: format_head, K_FORCING: format_hints, PIPO: format_pairs}

DEFAULTS: dict[str, Any] = {"depth": 3, "vocab": 32768, "intermediate": 0, "mtp": False, "loss": "tv"}

PANELS = {
    options.MODEL: ("name",),
    options.DRAFT: (
        "minutes",
        "kind",
        "k",
        "depth",
        "vocab",
        "intermediate",
        "mtp",
        "loss",
        "seed",
        "prompts",
    ),
    options.MACHINE: ("device",),
    options.OUTPUT: ("as_json",),
}

HELP = """Train a head for MODEL: one layer that reads its hidden states and guesses several tokens in a row.

The model writes texts by itself, and the head learns to continue them; the model stays as it is. The head is
added to the library, and `--draft auto` uses it if it makes MODEL faster. An interrupted training resumes.
With `--kind k-forcing` it trains hints instead, which MODEL's own passes read: `--draft k_forcing:name=NAME`.
With `--kind pipo` MODEL learns to read pairs of tokens: `--decoding pipo`, which is lossy.
It needs torch; a GPU trains in minutes what takes a processor hours."""
EPILOG = """Examples:

  localspec train-head qwen2.5-coder-1.5b --minutes 20

  localspec train-head smollm2-135m --minutes 5 --vocab 8192 --intermediate 512

  localspec train-head smollm2-135m --kind k-forcing --k 4 --minutes 60

  localspec train-head smollm2-135m --kind pipo --minutes 30"""

Target = Annotated[
    str,
    typer.Argument(help="Target model of the head.", autocompletion=completion.models, metavar="MODEL"),
]
Minutes = Annotated[float, typer.Option(help="Time limit, writing texts included.", min=0.05, metavar="N")]
Name = Annotated[
    str | None, typer.Option(help="Name in the library.", metavar="NAME", show_default="MODEL-head")
]
Device = Annotated[str, typer.Option(help="Torch device: auto, cpu, cuda or cuda:1.", metavar="NAME")]
Kind = Annotated[
    str, typer.Option(help="eagle3 (a layer), k-forcing (hints) or pipo (pairs).", metavar="NAME")
]
Tokens = Annotated[
    int | None,
    typer.Option("--k", help="Tokens a pass of k-forcing: 2, 4, 8 or 16.", metavar="N", show_default="4"),
]
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
    kind: Kind = EAGLE,
    k: Tokens = None,
    depth: Depth = DEFAULTS["depth"],
    vocab: Vocabulary = DEFAULTS["vocab"],
    intermediate: Intermediate = DEFAULTS["intermediate"],
    mtp: Deep = DEFAULTS["mtp"],
    loss: Loss = DEFAULTS["loss"],
    seed: Seed = 0,
    prompts: options.CalibrationPrompts = None,
    as_json: options.AsJsonCard = False,
) -> None:
    """Train the head and print its card."""
    from localspec.build import HeadBuild, build_head, card
    from localspec.cli.progress import Terminal
    from localspec.library import Library
    from localspec.training.head_training import HeadPlan
    from localspec.training.k_forcing.stages import KForcingPlan
    from localspec.training.pipo.pair_training import PipoPlan

    own = {"depth": depth, "vocab": vocab, "intermediate": intermediate, "mtp": mtp, "loss": loss}
    _check(kind, k, own)
    if kind == K_FORCING:
        plan: Any = KForcingPlan(minutes * 60, k=4 if k is None else k, seed=seed)
    elif kind == PIPO:
        plan = PipoPlan(minutes * 60, seed=seed)
    else:
        plan = HeadPlan(minutes * 60, depth, vocab, intermediate, mtp, loss, seed=seed)
    library, calibration = Library(), read_prompts(prompts)
    default = f"{model.rsplit('/', 1)[-1]}-{'head' if kind == EAGLE else kind}"
    with Terminal() as progress:
        build = HeadBuild(name or default, model, plan, device)
        built = build_head(build, calibration, library, progress)
    values = card(built)
    shown = FORMATS[kind](built.name, values)
    console.print_text(json.dumps(values, ensure_ascii=False) if as_json else shown)


def _check(kind: str, k: int | None, own: dict[str, Any]) -> None:
    """Raise UnknownName for an unknown kind or loss, BadValue for an option of the other kind of head."""
    if kind not in KINDS:
        raise UnknownName(f"Unknown kind `{kind}`", kind, KINDS)
    if (loss := own["loss"]) not in LOSSES:
        raise UnknownName(f"Unknown loss `{loss}`", loss, LOSSES)
    if kind != K_FORCING and k is not None:
        raise BadValue("`--k` does nothing without `--kind k-forcing`", "Leave it out, or use `--depth`")
    given = [name for name, value in own.items() if value != DEFAULTS[name]]
    if kind != EAGLE and given:
        raise BadValue(f"`--{given[0]}` does nothing beside `--kind {kind}`", "Leave it out")
