"""Options that several commands take, with one name, help and limit."""

from __future__ import annotations

from typing import Annotated

import typer

Lookahead = Annotated[str, typer.Option(help="How far to guess: see `localspec parts`.")]
Engine = Annotated[str, typer.Option(help="What runs the model: see `localspec parts`.")]
Device = Annotated[
    str | None, typer.Option(help="CPU, GPU, cuda ...: see `localspec devices`.", show_default="auto")
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the engine.", show_default="all")]
