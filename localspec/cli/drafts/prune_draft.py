"""`localspec prune-draft`: build a draft for a model by pruning a smaller one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.cli import completion, console, options
from localspec.cli.drafts.format_card import format_card
from localspec.cli.drafts.prompts import read_prompts
from localspec.errors import BadValue, UnknownName

if TYPE_CHECKING:
    from localspec.library import Library, StoredModel

OPENVINO, AUTO, ALL = "openvino", "auto", "all"
ENGINES = {OPENVINO: "openvino", "gguf": "llamacpp", "torch": "torch"}

PANELS = {
    options.MODEL: ("source", "name"),
    options.DRAFT: ("layers", "vocab", "bits", "heal", "prompts"),
    options.MACHINE: ("engine",),
    options.OUTPUT: ("as_json",),
}

HELP = """Build a draft for MODEL, with fewer bits, fewer layers and a smaller vocabulary.

The model answers calibration prompts, and each candidate is scored by the share of those tokens that it
predicts and by the cost of its passes on this machine. The draft is added to the library, and `--draft auto`
uses it if it makes MODEL faster. The command says first which model it cuts and about how long that takes,
and resumes an interrupted build."""
EPILOG = """Examples:

  localspec prune-draft qwen2.5-coder-1.5b --from qwen2.5-coder-0.5b

  localspec prune-draft qwen2.5-coder-1.5b --layers 14 --heal 30

  localspec prune-draft smollm2-135m --layers 24 --vocab 16000 --bits 8"""


Target = Annotated[
    str,
    typer.Argument(help="Target model of the draft.", autocompletion=completion.models, metavar="MODEL"),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Model to prune.",
        autocompletion=completion.models,
        metavar="MODEL",
        show_default="a sibling or MODEL",
    ),
]
Layers = Annotated[str, typer.Option(help="Layers to keep, or auto.", metavar="N")]
Vocabulary = Annotated[str, typer.Option(help="Tokens to keep in its vocabulary, all, or auto.", metavar="N")]
Bits = Annotated[str, typer.Option(help="Bits per weight: 4, 8, 16, 0 to keep them, or auto.", metavar="N")]
Healing = Annotated[str, typer.Option(help="Minutes of distillation (needs torch), or off.", metavar="N")]
Name = Annotated[
    str | None, typer.Option(help="Name in the library.", metavar="NAME", show_default="SOURCE-draft")
]
Engine = Annotated[str, typer.Option(help="openvino, gguf (llama.cpp) or torch.", metavar="NAME")]


@options.panels(PANELS)
def prune_draft(
    model: Target,
    source: Source = None,
    layers: Layers = "auto",
    vocab: Vocabulary = "auto",
    bits: Bits = AUTO,
    heal: Healing = "off",
    prompts: options.CalibrationPrompts = None,
    name: Name = None,
    engine: Engine = "openvino",
    as_json: options.AsJsonCard = False,
) -> None:
    """Build the draft and print its card."""
    from localspec.build import BuildPlan, build, card
    from localspec.cli.progress import Terminal
    from localspec.library import Library

    library = Library()
    calibration, steps = read_prompts(prompts), steps_of(layers, vocab, bits, heal, engine)
    with Terminal() as progress:
        if engine != OPENVINO and vocab == AUTO:
            progress.say(f"The vocabulary is not trimmed: {engine} files do not support it")
        target = library.resolve(model, progress)
        cut = library.resolve(source or sibling(target, library), progress)
        both = library.reference(target), library.reference(cut)
        plan = BuildPlan(name or f"{cut.name}-draft", *both, steps, engine=ENGINES[engine])
        built = build(plan, calibration, library, progress)
    values = card(built)
    shown = json.dumps(values, ensure_ascii=False) if as_json else format_card(built.name, both[0], values)
    console.print_text(shown)


def steps_of(layers: str, vocab: str, bits: str, heal: str, engine: str) -> tuple[str, ...]:
    """Return the steps of a build; raises BadValue and UnknownName for options that do not fit together.

    Layers are chosen after the other steps, when passes have their final cost. Healing
    restores full weights, which are then quantized and trimmed again. With `auto`, bits are searched for
    OpenVINO; a GGUF gets 4 and torch 16.
    """
    if engine not in ENGINES:
        raise UnknownName(f"Unknown engine `{engine}` for a draft", engine, ENGINES)
    if engine != OPENVINO and vocab not in (AUTO, ALL):
        raise BadValue(f"A {engine} file cannot have a trimmed vocabulary", "Give `--vocab all`")
    if bits == AUTO and engine != OPENVINO:
        bits = "16" if engine == "torch" else "4"
    if engine == "torch" and bits not in ("0", "16"):
        raise BadValue(f"`--bits {bits}` does not fit torch, which uses 16", "Give `--bits 16`")
    compress = [f"quantize:bits={bits}"] if bits != "0" else []
    if engine == OPENVINO and vocab != ALL:
        compress.append(f"trim_vocab:tokens={vocab}")
    cut = [*compress, f"prune:layers={layers}"]
    if heal != "off":
        cut.append(f"heal:minutes={heal}")
    if engine == OPENVINO:
        return (*cut, *(compress if heal != "off" else ()))
    return (*cut, "export:to=torch" if engine == "torch" else f"export:to=gguf,bits={bits}")


def sibling(target: StoredModel, library: Library) -> str:
    """Return the draft in the catalogue, or else the smallest model on disk with the same tokenizer.

    A copy of the target in fewer bits, or what was built from one, is none: cutting it gains less than
    cutting the target.
    """
    from localspec.build.pipeline import BUILT

    if target.draft:
        return target.draft
    digest = target.manifest.digests.get("tokenizer.json")
    siblings = [
        model
        for model in library.all("text")
        if digest
        and model.manifest.digests.get("tokenizer.json") == digest
        and not model.manifest.source.startswith(BUILT)
        and model.shape() != target.shape()
    ]
    smallest = min(siblings, key=lambda model: sum(model.manifest.sizes.values()), default=target)
    return library.reference(smallest)
