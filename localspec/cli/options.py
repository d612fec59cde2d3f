"""Options that several commands share, and commands whose options are the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from localspec.errors import BadValue

Values = TypeVar("Values")

DefaultModel = Annotated[  # the setting `model`
    str, typer.Option("--model", help="Model if the arguments name none.", hidden=True)
]
Draft = Annotated[
    str, typer.Option(help="Drafter: auto, off, a spec such as ngram:longest=4, or a draft model.")
]
DraftLengthPolicy = Annotated[str, typer.Option(help="Draft-length policy: see `localspec parts`.")]
Engine = Annotated[str, typer.Option(help="Engine that runs the model: see `localspec parts`.")]
Device = Annotated[
    str | None, typer.Option(help="CPU, GPU, cuda ...: see `localspec devices`.", show_default="auto")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of the engine.", show_default="all")]
PromptCache = Annotated[
    float,
    typer.Option(
        min=0, metavar="GB", help="Maximum disk for the prompt (KV) cache of all models; 0 turns it off."
    ),
]
Temperature = Annotated[
    float | None, typer.Option(help="Sampling temperature; 0 is greedy.", show_default="the model's")
]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling.", show_default="random")]
Suites = Annotated[
    list[str] | None,
    typer.Option(help="Name of a prompt suite, or a file; may be repeated.", show_default="quick"),
]
CalibrationPrompts = Annotated[
    Path | None,
    typer.Option(
        help="File of calibration prompts: one a line, or JSON lines.", show_default="those of `quick`"
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
