"""Options that several commands take, with one name, help and limit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DraftLengthPolicy = Annotated[str, typer.Option(help="How far to guess: see `localspec parts`.")]
Engine = Annotated[str, typer.Option(help="What runs the model: see `localspec parts`.")]
Device = Annotated[
    str | None, typer.Option(help="CPU, GPU, cuda ...: see `localspec devices`.", show_default="auto")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the engine.", show_default="all")]
Draft = Annotated[
    str, typer.Option(help="Who guesses: auto, off, a part such as ngram:longest=4, or a model.")
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        help="A file of prompts whose answers judge it, one a line or JSON lines.",
        show_default="those of `quick`",
    ),
]
PromptCache = Annotated[
    float,
    typer.Option(
        min=0, metavar="GB", help="Most disk for what long prompts were read to, of all models; 0 for none."
    ),
]
Temperature = Annotated[
    float | None, typer.Option(help="0 takes the likeliest token.", show_default="the model's")
]
Seed = Annotated[int | None, typer.Option(help="Draw the same again.", show_default="random")]
