"""`localspec stop`: unloads a model from a running server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from localspec.cli import completion, console, options
from localspec.cli.server import client
from localspec.errors import UnknownModel, nearest, printable

HELP = """Unload a model from a running server.

What is being answered is answered to its end. The next request for the model loads it again; Ctrl-C ends the
server itself."""
EPILOG = """Examples:

  localspec stop qwen2.5-coder-1.5b

  localspec stop smollm2-135m --port 8000"""


@dataclass(frozen=True, slots=True)
class StopOptions:
    """Arguments and options of `localspec stop`, in the order of its help."""

    model: Annotated[
        str,
        typer.Argument(help="Model to unload.", autocompletion=completion.installed, metavar="MODEL"),
    ]
    host: client.Host = "127.0.0.1"
    port: client.Port = client.PORT
    api_key: client.ApiKey = None


@options.command
def stop(given: StopOptions) -> None:
    """Ask the server; raises UnknownModel for a model that is not loaded, and what asking raises."""
    server = client.Server(given.host, given.port, given.api_key)
    names = [str(model["name"]) for model in server.loaded()]
    if given.model not in names:
        message = f"`{printable(given.model)}` is not loaded at `{server.address}`"
        raise UnknownModel(message, nearest(given.model, names, "localspec ps"))
    server.ask("POST", "/api/generate", {"model": given.model, "keep_alive": 0, "stream": False})
    left = given.model not in [str(model["name"]) for model in server.loaded()]
    console.say(f"{given.model} is unloaded" if left else f"{given.model} leaves when it has answered")
