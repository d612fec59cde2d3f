"""`localspec prune-draft`: a draft for a model, cut from a smaller one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import options
from localspec.errors import BadValue, UnknownName

if TYPE_CHECKING:
    from localspec.build import CalibrationPrompt
    from localspec.library import Library, Model

OPENVINO, AUTO, ALL = "openvino", "auto", "all"
ENGINES = {OPENVINO: "openvino", "gguf": "llamacpp", "torch": "torch"}

HELP = """Build a draft for MODEL: fewer bits, fewer layers, fewer tokens to choose from.

What is cut is chosen by what it gains: the model answers some prompts itself, and each candidate is judged by
how many of those tokens it would have guessed and by what a guess costs here. The result is a model of the
library that `--draft auto` finds. A build that was killed goes on where it stopped."""
EPILOG = """Examples:

  localspec prune-draft qwen2.5-coder-1.5b --from qwen2.5-coder-0.5b --name coder-draft

  localspec prune-draft qwen2.5-coder-1.5b --layers 14 --heal 30

  localspec prune-draft smollm2-135m --layers 24 --vocab 16000 --bits 8"""


def prune_draft(
    model: Annotated[str, typer.Argument(help="The target: which model the draft is for.")],
    source: Annotated[
        str | None,
        typer.Option("--from", help="The model that is cut.", show_default="its smallest sibling, or itself"),
    ] = None,
    layers: Annotated[str, typer.Option(help="Layers to keep, or auto.")] = "auto",
    vocab: Annotated[str, typer.Option(help="Tokens that it may guess, all, or auto.")] = "auto",
    bits: Annotated[str, typer.Option(help="Bits of a weight: 4, 8, 16, 0 to keep them, or auto.")] = AUTO,
    heal: Annotated[
        str, typer.Option(help="Minutes of teaching it what the model says, or off; takes torch.")
    ] = "off",
    prompts: options.Prompts = None,
    name: Annotated[str | None, typer.Option(help="What it is called.", show_default="SOURCE-draft")] = None,
    engine: Annotated[
        str, typer.Option(help="What it is for: openvino, gguf (llama.cpp) or torch.")
    ] = "openvino",
    as_json: Annotated[bool, typer.Option("--json", help="Print its card as JSON.")] = False,
) -> None:
    """Build the draft and print its card."""
    from localspec.build import Plan, build, card
    from localspec.library import Library, Terminal

    library = Library()
    asked, steps = read(prompts), steps_of(layers, vocab, bits, heal, engine)
    with Terminal() as progress:
        if engine != OPENVINO and vocab == AUTO:
            progress.say(f"Its head stays whole: no {engine} file can hold another")
        target = library.resolve(model, progress)
        cut = library.resolve(source or sibling(target, library), progress).name
        plan = Plan(name or f"{cut}-draft", target.name, cut, steps, engine=ENGINES[engine])
        built = build(plan, asked, library, progress)
    found = card(built)
    print(json.dumps(found, ensure_ascii=False) if as_json else in_words(built.name, target.name, found))


def steps_of(layers: str, vocab: str, bits: str, heal: str, engine: str) -> tuple[str, ...]:
    """Return the steps of a build; raises BadValue and UnknownName for what cannot be built so.

    Layers are chosen last, by what a guess costs in the bits and with the head that it will have. Healing
    gives whole weights, which are rounded and trimmed anew. Bits are chosen where OpenVINO runs the draft; a
    GGUF takes 4 and torch 16.
    """
    if engine not in ENGINES:
        raise UnknownName(f"There is no engine `{engine}` to build for", engine, ENGINES)
    if engine != OPENVINO and vocab not in (AUTO, ALL):
        raise BadValue(f"A {engine} file cannot hold a trimmed head", "Give `--vocab all`")
    if bits == AUTO and engine != OPENVINO:
        bits = "16" if engine == "torch" else "4"
    if engine == "torch" and bits not in ("0", "16"):
        raise BadValue(f"`--bits {bits}` is not for torch, whose weights have 16", "Give `--bits 16`")
    small = [f"quantize:bits={bits}"] if bits != "0" else []
    if engine == OPENVINO and vocab != ALL:
        small.append(f"trim_vocab:tokens={vocab}")
    cut = [*small, f"prune:layers={layers}"]
    if heal != "off":
        cut.append(f"heal:minutes={heal}")
    if engine == OPENVINO:
        return (*cut, *(small if heal != "off" else ()))
    return (*cut, "export:to=torch" if engine == "torch" else f"export:to=gguf,bits={bits}")


def sibling(target: Model, library: Library) -> str:
    """Return the catalogue's pair, else the smallest model on disk with the same tokenizer."""
    if target.draft:
        return target.draft
    digest = target.manifest.digests.get("tokenizer.json")
    same = [one for one in library.all() if digest and one.manifest.digests.get("tokenizer.json") == digest]
    whole = [one for one in same if not one.manifest.target]
    return min(whole, key=lambda one: sum(one.manifest.sizes.values()), default=target).name


def read(file: Path | None) -> list[CalibrationPrompt]:
    """Return prompts: of a file of JSON lines or of plain lines, else those of the quick suite."""
    from localspec.bench import suites
    from localspec.build import CalibrationPrompt

    def first(suite: str) -> list[CalibrationPrompt]:
        return [CalibrationPrompt(prompt.kind, prompt.turns[0]) for prompt in suites.load(suite)]

    if file is None:
        return first(suites.QUICK)
    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(
            f"`{file}` cannot be read: {error}", "Give a text file in UTF-8, a prompt a line"
        ) from None
    if not lines:
        raise BadValue(f"`{file}` has no prompts", "Write one a line")
    if lines[0].lstrip().startswith("{"):
        return first(str(file))
    return [CalibrationPrompt(file.stem, line) for line in lines]


def in_words(name: str, target: str, found: dict[str, Any]) -> str:
    """Return a card as lines."""
    predicted = found["predicted"]
    layers, tokens = found.get("layers"), found.get("tokens")
    lines = [f"{name}, a draft for {target}"]
    if layers is not None:
        lines.append(f"  layers     {len(layers)} of {found['of_layers']}")
    if tokens is not None:
        lines.append(f"  tokens     {tokens:,} of {found['of_tokens']:,}")
    lines += [
        f"  weights    {found['precision']}",
        f"  agreement  {found['agreement']:.0%} of the target's own tokens",
        f"  cost       {found['cost_ratio']:.2f} of a pass of the target",
        f"  predicted  {predicted['speed_up']:.2f} times as fast, at {predicted['depth']} guesses a round",
        *_measured(found),
        f"hint: localspec chat {target}  # --draft auto takes it",
    ]
    return "\n".join(lines)


def _measured(found: dict[str, Any]) -> list[str]:
    measured = found.get("adaptive")
    if measured is None:
        return []
    other = measured["other_texts"]
    same = "the same texts" if not other else f"{other} of {measured['texts']} texts are others"
    return [f"  measured   {measured['speed_up']:.2f} times as fast, {same}"]
