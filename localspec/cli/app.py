"""The command `localspec`: its commands, and the one place where errors become words and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from localspec.cli import chat, console, parts
from localspec.errors import LocalspecError

INTERRUPTED = 130
PIPE_CLOSED = 141

app = typer.Typer(
    name="localspec",
    help="The same answers of a local language model, sooner: a draft guesses, the model checks.",
    epilog='Try: localspec chat smollm2-135m "What is the capital of France?"',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("chat", help=chat.HELP, epilog=chat.EPILOG)(chat.chat)
app.command("parts", help=parts.HELP)(parts.parts)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""
    if version:
        from importlib.metadata import version as version_of

        print(version_of("localspec"))
        raise typer.Exit


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        app()
    except LocalspecError as error:
        console.show(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # whoever read our output is gone; Python would complain once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)
