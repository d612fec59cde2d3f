"""The command `localspec`: its subcommands, and how errors become messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Annotated, Any

import typer

from localspec.cli import config, console, options
from localspec.cli.agent import command as agent
from localspec.cli.chat import command as chat
from localspec.cli.drafts import build, find_mask, prune_draft, quantize, train_head
from localspec.cli.machine import bench, devices, doctor, parts, tune
from localspec.cli.models import clean, export, import_model, listing, pull, remove, search, show, verify
from localspec.cli.pictures import vae
from localspec.cli.server import launch, ps, serve, stop
from localspec.cli.transcribe import command as transcribe
from localspec.errors import LocalspecError, UsageError

app = typer.Typer(
    name="localspec",
    help="Run local language models faster with speculative decoding: a draft proposes, the model verifies.",
    epilog='Try: localspec chat smollm2-135m "What is the capital of France?"',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, tuple[ModuleType, Callable[..., None]]] = {
    "chat": (chat, chat.chat),
    "agent": (agent, agent.agent),
    "bench": (bench, bench.bench),
    "build": (build, build.build),
    "clean": (clean, clean.clean),
    "devices": (devices, devices.devices),
    "doctor": (doctor, doctor.doctor),
    "export": (export, export.export),
    "find-mask": (find_mask, find_mask.find_mask),
    "import": (import_model, import_model.import_model),
    "launch": (launch, launch.launch),
    "list": (listing, listing.listing),
    "parts": (parts, parts.parts),
    "prune-draft": (prune_draft, prune_draft.prune_draft),
    "ps": (ps, ps.ps),
    "pull": (pull, pull.pull),
    "quantize": (quantize, quantize.quantize),
    "rm": (remove, remove.remove),
    "search": (search, search.search),
    "serve": (serve, serve.serve),
    "show": (show, show.show),
    "stop": (stop, stop.stop),
    "train-head": (train_head, train_head.train_head),
    "transcribe": (transcribe, transcribe.transcribe),
    "tune": (tune, tune.tune),
    "vae": (vae, vae.vae),
    "verify": (verify, verify.verify),
}
for name, (module, function) in COMMANDS.items():
    text, examples = map(options.flowing, (module.HELP, module.EPILOG))
    app.command(name, cls=options.Command, help=text, epilog=examples)(function)
for alias, name in config.ALIASES.items():
    app.command(alias, cls=options.Command, help=f"Alias of `{name}`.", hidden=True)(COMMANDS[name][1])
app.add_typer(config.app, name=config.NAME)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        console.print_text(version("localspec"))
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Apply the settings to the subcommand."""
    config.apply(context)


def main() -> None:
    """Run the command line and exit with its exit code; raises KeyboardInterrupt at Ctrl-C.

    An error that is not localspec's own is raised, too.
    """
    applied: list[Any] = []  # the settings of the subcommand
    try:
        sys.exit(app(standalone_mode=False, obj=applied))
    except LocalspecError as error:
        console.show_traceback()
        console.show(config.with_place(error, applied, sys.argv))
        sys.exit(error.exit_code)
    except typer.Abort:  # Ctrl-C at a confirmation
        raise KeyboardInterrupt from None
    except Exception as error:
        if not hasattr(error, "format_message"):  # not an error of the parser
            raise
        if error.format_message():  # empty if the help was shown instead
            console.show(config.with_place(as_usage_error(error), applied, sys.argv))
        sys.exit(UsageError.exit_code)


def as_usage_error(error: Any) -> UsageError:
    """Return an error of the parser as a UsageError, with a hint."""
    text = str(error.format_message()).replace("'", "`").rstrip(".")
    message, _, near = text.replace(" (Possible options: ", ". Did you mean ").partition(". Did you mean ")
    command = error.ctx.command_path if error.ctx else "localspec"
    close = " or ".join(f"`{name.strip('`?) ')}`" for name in near.split(","))
    hint = f"Did you mean {close}?" if near else f"See `{command} --help`"
    return UsageError(message, hint)
