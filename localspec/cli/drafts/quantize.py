"""`localspec quantize`: quantize a model to fewer bits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from localspec.cli import completion, console, options
from localspec.cli.drafts.format_card import format_size
from localspec.cli.drafts.prompts import read_prompts

HELP = """Quantize a model's weights to fewer bits, as a new model of the library.

In 4 bits, a group of columns shares a scale; `awq`, `scale` and `gptq` calibrate on the model's own answers,
and take long. The command says first about how long it takes, and at the end what was gained: the size, the
speed and the perplexity of the result, on the model's answers, beside the original's."""
EPILOG = "Example: localspec quantize smollm2-135m --bits 8 --name smol8"


@options.panels(
    {
        options.MODEL: ("bits", "group", "ratio", "method", "zero", "prompts"),
        options.OUTPUT: ("name", "as_json"),
    }
)
def quantize(
    model: Annotated[
        str, typer.Argument(help="Model to quantize.", autocompletion=completion.models, metavar="MODEL")
    ],
    bits: Annotated[int, typer.Option(help="Bits per weight: 4, 8 or 16.", metavar="N")] = 4,
    group: Annotated[
        int, typer.Option(min=32, metavar="N", help="Columns that share a scale, in 4 bits.")
    ] = 64,
    ratio: Annotated[float, typer.Option(min=0, max=1, metavar="X", help="Share of layers in 4 bits.")] = 1.0,
    method: Annotated[str, typer.Option(help="rtn, awq, scale or gptq.", metavar="NAME")] = "rtn",
    zero: Annotated[
        bool, typer.Option("--zero", help="Give each group a zero point: more exact, slower.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name in the library.", metavar="NAME", show_default="MODEL-intN")
    ] = None,
    prompts: options.CalibrationPrompts = None,
    as_json: options.AsJsonCard = False,
) -> None:
    """Build the model and print its card."""
    from localspec.build import BuildPlan, build, card, graph_bytes
    from localspec.cli.progress import Terminal
    from localspec.library import Library

    calibration = read_prompts(prompts)
    settings = [f"bits={bits}", f"zero={'on' if zero else 'off'}", f"method={method}"]
    settings += [f"group={group}", f"ratio={ratio}"] if bits == 4 else []
    library = Library()
    with Terminal() as progress:
        source = library.resolve(model, progress)
        step = f"quantize:{','.join(settings)}"
        own = library.reference(source)
        plan = BuildPlan(name or f"{source.name}-int{bits}", own, own, (step,), draft=False)
        built = build(plan, calibration, library, progress)
    values, sizes = card(built), (graph_bytes(built), graph_bytes(source))
    if as_json:
        console.print_json(values)
        return
    console.print_text(format_quantized(built.name, source.name, values, sizes))


def format_quantized(name: str, source: str, card: dict[str, Any], sizes: tuple[int, int]) -> str:
    """Return what a quantized model gains over `source`, what it loses, and what to type next.

    `sizes` are the bytes of both models' weights.
    """
    built, original = sizes
    speed = 1 / card["cost_ratio"]
    lines = [
        f"{name}, {source} in {card['precision']}",
        f"  size         {format_size(built, original)}",
        f"  quality      perplexity {card['perplexity_ratio']:.3f} times that of {source} on its own answers,"
        f" the same most likely token in {card['agreement']:.1%}",
        f"  speed        {speed:.2f} times as fast a token",
    ]
    if built >= original and speed <= 1:
        return "\n".join([*lines, "It gains nothing", f"hint: localspec rm {name}"])
    return "\n".join([*lines, f"hint: localspec chat {name}"])
