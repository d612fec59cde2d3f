"""`localspec launch`: sets up an editor or agent for a running server, and starts it."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from typing import Annotated

import typer

from localspec import children
from localspec.cli import completion, console, options
from localspec.cli.server import client
from localspec.cli.server.tools import TOOLS, Asked, Setup
from localspec.errors import BadValue, LocalspecError, UnknownName

HELP = """Set up an editor or agent for a running server: aider, claude, codex, continue, opencode or zed.

It prints the lines for a shell, or the content of the tool's file and its path. --run starts the tool with
them, where no file is needed. Without MODEL it is the one that the server has loaded."""
EPILOG = """Examples:

  localspec launch aider qwen2.5-coder-1.5b

  localspec launch claude --run

  localspec launch zed"""
NO_KEY = "none"  # for clients that require one
CONTEXT = 8192  # tokens, of a model that is not in this library
MISSING = 127  # the exit code of shells


def complete_tools(incomplete: str) -> list[str]:
    """Complete the name of a tool."""
    return completion.starting(incomplete, lambda: TOOLS)


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Arguments and options of `localspec launch`, in the order of its help."""

    tool: Annotated[
        str,
        typer.Argument(help=f"One of {', '.join(TOOLS)}.", autocompletion=complete_tools, metavar="TOOL"),
    ]
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model that it uses.",
            autocompletion=completion.installed,
            metavar="MODEL",
            show_default="the loaded one",
        ),
    ] = None
    run: Annotated[bool, typer.Option("--run", help="Start the tool.")] = False
    host: client.Host = "127.0.0.1"
    port: client.Port = client.PORT
    api_key: client.ApiKey = None


class NotInstalled(LocalspecError):
    """A tool that is not on the path."""

    exit_code = MISSING


@options.command
def launch(given: LaunchOptions) -> None:
    """Print the setup, or start the tool with it.

    Raises UnknownName for an unknown tool, BadValue for one that `--run` cannot start, NotInstalled, and what
    asking the server raises; without `--run` no server needs to be there if a model is named.
    """
    if given.tool not in TOOLS:
        raise UnknownName(f"Unknown tool `{given.tool}`", given.tool, TOOLS)
    server = client.Server(given.host, given.port, given.api_key)
    setup = TOOLS[given.tool](_asked(given, server))
    if not given.run:
        _show(setup)
        return
    if not setup.runs:
        raise BadValue(
            f"`--run` cannot start `{given.tool}`, which reads its settings from a file",
            f"Put what `localspec launch {given.tool}` prints into `{setup.file}`",
        )
    if shutil.which(setup.program) is None:
        raise NotInstalled(f"`{setup.program}` is not installed", "Install it, or check the variable `PATH`")
    children.become([setup.program, *setup.arguments], os.environ | dict(setup.variables))


def _asked(given: LaunchOptions, server: client.Server) -> Asked:
    """Return what the tool is to use, with a model that the server has, if one runs."""
    try:
        model = given.model or _loaded(given.tool, server)
        server.check(model)
    except client.NoServer as error:
        if given.run or given.model is None:
            raise
        model = given.model
        console.say(f"{error.message.replace('`', '')} yet: localspec serve {shlex.quote(model)}")
    return Asked(server.address, server.key or NO_KEY, model, _context(model))


def _loaded(tool: str, server: client.Server) -> str:
    for model in server.loaded():
        return str(model["name"])
    raise BadValue(f"`{server.address}` has loaded no model", f"Name one: localspec launch {tool} MODEL")


def _context(model: str) -> int:
    from localspec.library import Library

    found = Library().find(model)
    return (found.manifest.context if found else None) or CONTEXT


def _show(setup: Setup) -> None:
    """Print the content of a tool's file, or lines for a shell, on stdout; the rest on stderr."""
    if setup.file is None:
        for name, value in setup.variables.items():
            console.print_text(f"export {name}={shlex.quote(value)}")
        console.print_text(shlex.join([setup.program, *setup.arguments]))
        return
    console.say(f"For {setup.file}, beside what is there:")
    console.print_text(setup.content)
    if not setup.runs:
        for name, value in setup.variables.items():
            console.say(f"Start it with {name}={shlex.quote(value)} in its environment")
