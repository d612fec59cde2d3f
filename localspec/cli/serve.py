"""`localspec serve`: the APIs of OpenAI, Anthropic and Ollama on this machine."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Annotated

import typer

from localspec.cli import completion, console, options
from localspec.errors import BadValue, MissingExtra, NetworkError

HELP = """Serve models to editors and agents through the APIs of OpenAI, Anthropic and Ollama.

MODEL... are loaded at the start; any other model of the library is loaded when a client asks for it, and
leaves after --keep-alive. Only this machine can connect unless --host says otherwise, which needs a key.
Ctrl-C ends the server."""
EPILOG = """Examples:

  localspec serve qwen2.5-coder-1.5b

  localspec serve --host 0.0.0.0 --api-key "$KEY" --port 8000"""
PORT = 11435
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROMPT_CACHE = 2 * 10**9  # bytes on disk
PANELS = {
    "Server": ("host", "port", "api_key", "keep_alive", "parallel", "queue"),
    options.DRAFT: ("draft", "draft_length"),
    options.MACHINE: ("engine", "device", "threads"),
}


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Arguments and options of `localspec serve`, in the order of its help."""

    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Models to load at once.",
            autocompletion=completion.models,
            metavar="MODEL",
            show_default=False,
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on.", metavar="ADDRESS")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port, 0 for any free one.", metavar="N")] = PORT
    api_key: Annotated[
        str | None, typer.Option(help="Key that clients must send.", metavar="KEY", show_default="none")
    ] = None
    keep_alive: Annotated[
        float, typer.Option(min=0, help="Minutes that an idle model stays.", metavar="MINUTES")
    ] = 10.0
    parallel: Annotated[
        int, typer.Option(min=1, max=64, help="Requests that a model answers at once.", metavar="N")
    ] = 4
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait for a model.", metavar="N")] = 64
    draft: options.Draft = "auto"
    draft_length: options.DraftLengthPolicy = "adaptive"
    engine: options.Engine = "auto"
    device: options.Device = None
    threads: options.Threads = None

    def check(self) -> None:
        """Raise BadValue for an address that other machines reach without a key."""
        if self.host not in LOOPBACK and not self.api_key:
            raise BadValue(
                f"`{self.host}` lets other machines connect, and there is no key",
                "Add `--api-key KEY` of your choice",
            )

    def listen(self) -> socket.socket:
        """Return a socket that listens; raises NetworkError."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family)
        except OSError as error:
            message = f"Cannot listen on {self.host}, port {self.port}: {error.strerror}"
            raise NetworkError(message, "Choose another `--port`") from error


@options.panels(PANELS)
@options.command
def serve(given: ServeOptions) -> None:
    """Check the options, load the models, and serve until Ctrl-C or SIGTERM."""
    given.check()
    try:
        import uvicorn

        from localspec.serve import app, pool
    except ImportError:
        raise MissingExtra("fastapi", "serve") from None
    from localspec.cli.progress import Terminal
    from localspec.library import Library, Progress, Silent
    from localspec.runtime.choice import Choice
    from localspec.runtime.generation import Runtime

    choice = Choice(given.engine, given.draft, given.draft_length, "exact", given.device, given.threads)
    choice.check()
    library = Library()

    def load(name: str, progress: Progress | None = None) -> list[Runtime]:
        return Runtime.load_several(name, choice, library, progress or Silent(), given.parallel, PROMPT_CACHE)

    listening = given.listen()
    served = pool.Pool(load, keep_alive=60 * given.keep_alive, max_waiting=given.queue)
    for name in given.models or []:
        with Terminal() as progress:
            runtimes = load(name, progress)
        served.add(runtimes[0].model.name, runtimes)
    hosts = [given.host] if given.host in LOOPBACK else None
    made = app.create(served, library, hosts=hosts, key=given.api_key)
    config = uvicorn.Config(made, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    host = f"[{given.host}]" if ":" in given.host else given.host
    address = f"http://{host}:{listening.getsockname()[1]}"
    key = "KEY" if given.api_key else "none"
    console.say(f"Serving on {address}; for clients of OpenAI, Anthropic and Ollama:")
    console.say(f"  export OPENAI_BASE_URL={address}/v1 OPENAI_API_KEY={key}")
    console.say(f"  export ANTHROPIC_BASE_URL={address} ANTHROPIC_API_KEY={key}")
    console.say(f"  export OLLAMA_HOST={address}")
    uvicorn.Server(config).run(sockets=[listening])
