"""`localspec serve`: the APIs of OpenAI, Anthropic and Ollama on this machine."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from localspec import children
from localspec.cli import completion, console, options
from localspec.cli.server import vllm
from localspec.cli.server.client import PORT, address_of
from localspec.errors import BadValue, MissingExtra, NetworkError
from localspec.serve.duration import seconds_of

if TYPE_CHECKING:
    from fastapi import APIRouter

HELP = """Serve models to editors and agents through the APIs of OpenAI, Anthropic and Ollama, and a chat in
the browser.

MODEL... are loaded at the start; any other model of the library is loaded when a client asks for it, and
leaves after --keep-alive. Only this machine can connect unless --host says otherwise, which needs a key.
Ctrl-C ends the server. --engine vllm starts vLLM's own server with one model, on one or several cards."""
EPILOG = """Examples:

  localspec serve qwen2.5-coder-1.5b

  localspec serve --host 0.0.0.0 --api-key "$KEY" --port 8000

  localspec serve --vae sd-vae --host 0.0.0.0 --api-key "$KEY"

  localspec serve qwen3-8b --engine vllm --tensor-parallel 2"""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PROMPT_CACHE = 2 * 10**9  # bytes on disk
PANELS = {
    "Server": ("host", "port", "api_key", "keep_alive", "parallel", "queue", "log", "vae"),
    options.ANSWER: ("vision_tokens",),
    options.DRAFT: ("draft", "draft_length"),
    options.MACHINE: ("engine", "device", "threads"),
    "vLLM": ("tensor_parallel", "pipeline_parallel"),
}
VLLM = "vllm"
LOGS = ("off", "json")


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
        str, typer.Option(help="How long an idle model stays: 30s, 10m, 1h, -1 for ever.", metavar="TIME")
    ] = "10m"
    parallel: Annotated[
        int, typer.Option(min=1, max=64, help="Requests that a model answers at once.", metavar="N")
    ] = 4
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait for a model.", metavar="N")] = 64
    log: Annotated[
        str,
        typer.Option(
            help="json: a line on stderr for each request, without its text.",
            autocompletion=lambda incomplete: completion.starting(incomplete, lambda: LOGS),
            metavar="FORM",
        ),
    ] = "off"
    vae: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an autoencoder to serve (`localspec vae`).",
            metavar="FOLDER",
            show_default="none",
        ),
    ] = None
    vision_tokens: options.VisionTokens = ""
    draft: options.Draft = "auto"
    draft_length: options.DraftLengthPolicy = "adaptive"
    engine: options.Engine = "auto"
    device: options.Device = None
    threads: options.Threads = None
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Cards that share each layer.", metavar="N")] = 1
    pipeline_parallel: Annotated[
        int, typer.Option(min=1, help="Groups of cards that share the layers.", metavar="N")
    ] = 1

    @property
    def idle_seconds(self) -> float:
        """How long an idle model stays; raises BadValue."""
        return seconds_of(self.keep_alive, "--keep-alive")

    def check(self) -> None:
        """Raise BadValue for options that exclude each other, or expose a server without a key."""
        _ = self.idle_seconds
        if self.log not in LOGS:
            raise BadValue(f"`--log` cannot be `{self.log}`", f"Choose from {' and '.join(LOGS)}")
        if self.engine == VLLM:
            self._check_given(("models", "host", "port", "api_key", "draft", "draft_length", "engine"))
        else:
            self._check_vllm()
        if self.host not in LOOPBACK and not self.api_key:
            raise BadValue(
                f"`{self.host}` lets other machines connect, and there is no key",
                "Add `--api-key KEY` of your choice",
            )

    def _check_vllm(self) -> None:
        for name in PANELS["vLLM"]:
            if getattr(self, name) != 1:
                option = f"--{name.replace('_', '-')}"
                raise BadValue(f"`{option}` needs vLLM", f"Add `--engine vllm`, or leave `{option}` out")

    def _check_given(self, passed_on: tuple[str, ...]) -> None:
        """Raise BadValue for what vLLM would not get."""
        for field in fields(self):
            if field.name not in (*passed_on, *PANELS["vLLM"]) and getattr(self, field.name) != field.default:
                option = f"--{field.name.replace('_', '-')}"
                raise BadValue(f"vLLM does not take `{option}`", f"Leave `{option}` out")
        if len(self.models or []) != 1:
            raise BadValue("vLLM serves one model", "Name it: localspec serve MODEL --engine vllm")
        if self.port == 0:
            raise BadValue("vLLM does not choose a port by itself", "Add `--port N`")

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
    if given.engine == VLLM:
        _become_vllm(given)
    try:
        from localspec.serve import app, pool, server
    except ImportError:
        raise MissingExtra("fastapi", "serve") from None
    from localspec.cli.progress import Terminal
    from localspec.library import Library, Progress, Silent
    from localspec.runtime import pictures
    from localspec.runtime.choice import Choice
    from localspec.runtime.generation import Runtime

    choice = Choice(
        *(given.engine, given.draft, given.draft_length, "exact", given.device, given.threads),
        vision_tokens=given.vision_tokens,
    ).or_tuned()
    choice.check()
    library = Library()

    def load(name: str, progress: Progress | None = None) -> list[Runtime]:
        own = pictures.suiting(choice, library.find(name))
        return Runtime.load_several(name, own, library, progress or Silent(), given.parallel, PROMPT_CACHE)

    more = _autoencoder(given.vae) if given.vae else []
    listening = given.listen()
    served = pool.Pool(load, keep_alive=given.idle_seconds, max_waiting=given.queue)
    for name in given.models or []:
        with Terminal() as progress:
            runtimes = load(name, progress)
        served.add(runtimes[0].model.name, runtimes)
    hosts = [given.host] if given.host in LOOPBACK else None
    log = console.say if given.log == "json" else None
    made = app.create(served, library, hosts=hosts, key=given.api_key, log=log, more=more)
    _tell(address_of(given.host, listening.getsockname()[1]), "KEY" if given.api_key else "none")
    server.run(made, listening, served.end)


def _autoencoder(folder: Path) -> list[APIRouter]:
    """Return the paths of a folder's autoencoder; raises MissingExtra, UnsupportedModel and BrokenModel."""
    from localspec.serve.vae import routes
    from localspec.vae.local import Autoencoder

    loaded = Autoencoder(folder)
    console.say(f"Autoencoder of {folder} on {loaded.device}: /vae/decode and /vae/encode")
    return [routes(loaded)]


def _tell(address: str, key: str) -> None:
    """Say where the server is, and what clients need."""
    console.say(f"Serving on {address}: a chat in your browser, and the APIs of OpenAI, Anthropic and Ollama")
    console.say(f"  export OPENAI_BASE_URL={address}/v1 OPENAI_API_KEY={key}")
    console.say(f"  export ANTHROPIC_BASE_URL={address} ANTHROPIC_API_KEY={key}")
    console.say(f"  export OLLAMA_HOST={address}")


def _become_vllm(given: ServeOptions) -> None:
    """Be vLLM's own server from here on; its key is in no command line that others can read."""
    (model,) = given.models or [""]
    words = vllm.command(
        model,
        host=given.host,
        port=given.port,
        tensor=given.tensor_parallel,
        pipeline=given.pipeline_parallel,
        draft=given.draft,
        draft_length=given.draft_length,
    )
    key = {"VLLM_API_KEY": given.api_key} if given.api_key else {}
    children.become(words, os.environ | key)
