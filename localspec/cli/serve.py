"""`localspec serve`: the APIs of OpenAI on this machine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.cli import completion, console, options
from localspec.errors import BadValue, MissingExtra, NetworkError

if TYPE_CHECKING:
    from localspec.runtime.generation import Runtime

HELP = """Serve models to editors and agents through OpenAI's API.

MODEL... are loaded at the start; any other model of the library is loaded when a client asks for it, and
leaves after --keep-alive. Only this machine can connect unless --host says otherwise, which needs a key.
Ctrl-C ends the server."""
EPILOG = """Examples:

  localspec serve qwen2.5-coder-1.5b

  localspec serve --host 0.0.0.0 --api-key "$KEY" --port 8000"""
PORT = 11435
PROMPT_CACHE = 2 * 10**9  # bytes on disk
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Models to load at once.", autocompletion=completion.models, metavar="[MODEL]..."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port, 0 for any free one.", metavar="N")
    ] = PORT,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="LOCALSPEC_API_KEY", help="Key that clients must send.", metavar="KEY"),
    ] = None,
    draft: options.Draft = "auto",
    draft_length: options.DraftLengthPolicy = "adaptive",
    engine: options.Engine = "auto",
    device: options.Device = None,
    threads: options.Threads = None,
    keep_alive: Annotated[
        float, typer.Option(min=0, help="Minutes that an idle model stays.", metavar="MINUTES")
    ] = 10.0,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait for a model.", metavar="N")] = 64,
) -> None:
    """Check the options, load the models and serve until Ctrl-C or SIGTERM."""
    if host not in LOOPBACK and not api_key:
        raise BadValue(
            f"`{host}` lets other machines connect, and there is no key", "Add `--api-key KEY` of your choice"
        )
    try:
        import uvicorn

        from localspec.serve import app, pool
    except ImportError:
        raise MissingExtra("fastapi", "serve") from None
    from localspec.api import load_choice
    from localspec.cli.progress import Terminal
    from localspec.library import Library, Progress, Silent
    from localspec.runtime.choice import Choice

    choice, library = Choice(engine, draft, draft_length, "exact", device, threads), Library()
    choice.check()

    def load(name: str, progress: Progress | None = None) -> Runtime:
        return load_choice(name, choice, library, progress or Silent(), PROMPT_CACHE).runtime

    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise NetworkError(
            f"Cannot listen on {host}, port {port}: {error.strerror}", "Choose another `--port`"
        ) from error
    served = pool.Pool(load, keep_alive=60 * keep_alive, max_waiting=queue)
    for name in models or []:
        with Terminal() as progress:
            runtime = load(name, progress)
        served.add(runtime.model.name, runtime)
    hosts = [host] if host in LOOPBACK else None
    made = app.create(served, library, hosts=hosts, key=api_key)
    config = uvicorn.Config(made, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
    console.say(f"Serving on {address}; for clients of OpenAI:")
    console.say(f"  export OPENAI_BASE_URL={address}/v1 OPENAI_API_KEY={'...' if api_key else 'none'}")
    uvicorn.Server(config).run(sockets=[listening])
