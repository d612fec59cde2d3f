"""`localspec quantize`: a model in fewer bits."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from localspec.cli import options
from localspec.cli.drafts.prune_draft import read

HELP = """Round a model's weights to fewer bits, as a new model of the library.

Of four bits a group of columns shares a scale; `awq`, `scale` and `gptq` look at texts that the model writes,
and take long. The result is checked: its perplexity on texts of the model is told beside that before."""
EPILOG = "Example: localspec quantize smollm2-135m --bits 8 --name smol8"


def quantize(
    model: Annotated[str, typer.Argument(help="Which model.")],
    bits: Annotated[int, typer.Option(help="Bits of a weight: 4, 8 or 16.")] = 4,
    group: Annotated[int, typer.Option(min=32, help="Columns that share a scale, of 4 bits.")] = 64,
    ratio: Annotated[float, typer.Option(min=0, max=1, help="Share of layers in 4 bits.")] = 1.0,
    method: Annotated[str, typer.Option(help="How it rounds: rtn, awq, scale or gptq.")] = "rtn",
    zero: Annotated[bool, typer.Option("--zero", help="A zero point a group: closer, slower.")] = False,
    name: Annotated[str | None, typer.Option(help="What it is called.", show_default="MODEL-intN")] = None,
    prompts: options.Prompts = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print its card as JSON.")] = False,
) -> None:
    """Build the model and print its card."""
    from localspec.build import Plan, build, card
    from localspec.library import Library, Terminal

    asked = read(prompts)
    words = [f"bits={bits}", f"zero={'on' if zero else 'off'}", f"method={method}"]
    words += [f"group={group}", f"ratio={ratio}"] if bits == 4 else []
    library = Library()
    with Terminal() as progress:
        source = library.resolve(model, progress)
        step = f"quantize:{','.join(words)}"
        plan = Plan(name or f"{source.name}-int{bits}", source.name, source.name, (step,), draft=False)
        built = build(plan, asked, library, progress)
    found = card(built)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    print(
        f"{built.name}: {found['precision']}, perplexity {found['perplexity_ratio']:.3f} times that of"
        f" {source.name} on its own texts, {found['agreement']:.1%} of the likeliest tokens the same"
    )
