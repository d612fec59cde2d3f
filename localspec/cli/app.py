"""The command `localspec`: its subcommands, and how errors become messages and exit codes."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from localspec.cli import config, console
from localspec.cli.agent import command as agent
from localspec.cli.chat import command as chat
from localspec.cli.drafts import build, prune_draft, quantize
from localspec.cli.machine import bench, devices, doctor, parts, tune
from localspec.cli.models import clean, export, import_model, listing, pull, remove, search, show, verify
from localspec.errors import LocalspecError, UsageError

app = typer.Typer(
    name="localspec",
    help="Run local language models faster with speculative decoding: a draft proposes, the model verifies.",
    epilog='Try: localspec chat smollm2-135m "What is the capital of France?"',
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("chat", help=chat.HELP, epilog=chat.EPILOG)(chat.chat)
app.command("run", help="Alias of `chat`.", hidden=True)(chat.chat)
app.command("agent", help=agent.HELP, epilog=agent.EPILOG)(agent.agent)
app.command("bench", help=bench.HELP, epilog=bench.EPILOG)(bench.bench)
app.command("build", help=build.HELP, epilog=build.EPILOG)(build.build)
app.command("clean", help=clean.HELP, epilog=clean.EPILOG)(clean.clean)
app.add_typer(config.app, name=config.NAME)
app.command("devices", help=devices.HELP, epilog=devices.EPILOG)(devices.devices)
app.command("doctor", help=doctor.HELP, epilog=doctor.EPILOG)(doctor.doctor)
app.command("export", help=export.HELP, epilog=export.EPILOG)(export.export)
app.command("import", help=import_model.HELP, epilog=import_model.EPILOG)(import_model.import_model)
app.command("list", help=listing.HELP, epilog=listing.EPILOG)(listing.listing)
app.command("ls", help="Alias of `list`.", hidden=True)(listing.listing)
app.command("parts", help=parts.HELP, epilog=parts.EPILOG)(parts.parts)
app.command("prune-draft", help=prune_draft.HELP, epilog=prune_draft.EPILOG)(prune_draft.prune_draft)
app.command("pull", help=pull.HELP, epilog=pull.EPILOG)(pull.pull)
app.command("quantize", help=quantize.HELP, epilog=quantize.EPILOG)(quantize.quantize)
app.command("rm", help=remove.HELP, epilog=remove.EPILOG)(remove.remove)
app.command("search", help=search.HELP, epilog=search.EPILOG)(search.search)
app.command("show", help=show.HELP, epilog=show.EPILOG)(show.show)
app.command("tune", help=tune.HELP, epilog=tune.EPILOG)(tune.tune)
app.command("verify", help=verify.HELP, epilog=verify.EPILOG)(verify.verify)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        console.print_text(version("localspec"))
        raise typer.Exit


@app.callback()
def options(
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
    hint = f"Did you mean `{near.strip('`?)')}`?" if near else f"See `{command} --help`"
    return UsageError(message, hint)
