"""Options that several commands share, and commands whose options are the fields of a dataclass."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from localspec.cli import completion
from localspec.errors import BadValue

Values = TypeVar("Values")

MODEL, ANSWER, DRAFT, MACHINE, OUTPUT = "Model", "Answer", "Draft", "Machine", "Output"  # panels of the help

DefaultModel = Annotated[  # the setting `model`
    str, typer.Option("--model", help="Model if the arguments name none.", hidden=True)
]
Draft = Annotated[
    str,
    typer.Option(
        help="auto, off, a spec (ngram:longest=4), a model.", autocompletion=completion.drafts, metavar="SPEC"
    ),
]
DraftLengthPolicy = Annotated[
    str,
    typer.Option(
        help="How far to draft: see `localspec parts`.", autocompletion=completion.policies, metavar="SPEC"
    ),
]
Verifier = Annotated[
    str,
    typer.Option(
        help="exact, rejection; via changes the text.",
        autocompletion=completion.verifiers,
        metavar="SPEC",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        help="What runs the model: see `localspec parts`.", autocompletion=completion.engines, metavar="SPEC"
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="CPU, GPU, cuda: see `localspec devices`.", metavar="NAME", show_default="auto"),
]
Threads = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="CPU threads of the engine.", show_default="all")
]
PromptCache = Annotated[
    float,
    typer.Option(min=0, metavar="GB", help="Disk for the prompt (KV) cache, 0 for none."),
]
Temperature = Annotated[
    float | None,
    typer.Option(help="Sampling temperature; 0 is greedy.", metavar="X", show_default="the model's"),
]
Sampler = Annotated[
    str | None,
    typer.Option(
        help="How a diffusion model fills in blocks.",
        autocompletion=completion.samplers,
        metavar="SPEC",
        show_default="low_confidence",
    ),
]
VisionTokens = Annotated[
    str,
    typer.Option(help="Fewer of a picture, as keep=64: another text.", metavar="SPEC", show_default=False),
]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling.", metavar="N", show_default="random")]
Suites = Annotated[
    list[str] | None,
    typer.Option(
        help="Prompt suite, or a file; may be repeated.",
        autocompletion=completion.suites,
        metavar="NAME",
        show_default="quick",
    ),
]
CalibrationPrompts = Annotated[
    Path | None,
    typer.Option(
        help="Calibration prompts, one a line or JSON lines.", metavar="FILE", show_default="suite quick"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
AsJsonList = Annotated[bool, typer.Option("--json", help="Print a JSON list.")]
AsJsonCard = Annotated[bool, typer.Option("--json", help="Print its card as JSON.")]


def text(parameter: typer.CallbackParam, value: Any) -> Any:
    """Return the text, or texts, of an option; raises BadValue for bytes that are not UTF-8."""
    if isinstance(value, list | tuple):
        return [text(parameter, each) for each in value]
    found = utf8(value or "")
    if found is None:
        raise BadValue(f"`--{parameter.name}` is not UTF-8 text", "Check where it comes from, and convert it")
    return value and found


def utf8(text: str) -> str | None:
    """Return a text of the command line, None if it is not UTF-8.

    In a locale of another encoding, such as C, bytes that this lacks have become surrogates.
    """
    try:
        return os.fsencode(text).decode() if has_surrogates(text) else text
    except UnicodeError:
        return None


def has_surrogates(text: str) -> bool:
    """Return whether a text from the system has bytes that are not of its encoding."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def command(function: Callable[[Values], None]) -> Callable[..., None]:
    """Return a typer command that calls `function` with a dataclass of the options that were given.

    Each field of the dataclass, in its order, is a parameter of the command.
    """
    (kind,) = (hint for name, hint in get_type_hints(function).items() if name != "return")
    hints = get_type_hints(kind, include_extras=True)

    @functools.wraps(function)
    def called(**values: Any) -> None:
        function(kind(**values))

    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(kind).parameters.items()
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = hints
    return called


def panels(groups: Mapping[str, tuple[str, ...]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that groups a command's options, by parameter, in panels of its help."""
    panel_of = {name: panel for panel, names in groups.items() for name in names}

    def grouped(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        for name, panel in panel_of.items():
            kind, option = hints[name].__origin__, copy.copy(hints[name].__metadata__[0])
            option.rich_help_panel = panel
            hints[name] = Annotated[kind, option]
        parameters = inspect.signature(function).parameters.values()
        changed = [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]
        function.__signature__ = inspect.Signature(changed)  # type: ignore[attr-defined]
        function.__annotations__ = hints
        return function

    return grouped


class Command(TyperCommand):
    """A command whose `--help` is in the panel of its output, if its options are in panels.

    Python looks for garbage from its beginning on, and not among what was imported before.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        gc.freeze()
        gc.enable()
        return super().invoke(ctx)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option, in its panel."""
        option = super().get_help_option(ctx)
        if option and any(getattr(parameter, "rich_help_panel", None) for parameter in self.params):
            option.rich_help_panel = OUTPUT
        return option


def flowing(text: str) -> str:
    """Return a command's text for its help: each paragraph is one line, and a bracket is no markup."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).replace("[", "\\[")
