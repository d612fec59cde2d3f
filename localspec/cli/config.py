"""`localspec config`: what is set and where, and how the commands come to their settings."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import console
from localspec.errors import BadValue, LocalspecError, UnknownName, suggestion

if TYPE_CHECKING:
    from localspec.settings import Commands, Option, Setting, Text

HELP = """Show every setting: its value, and where that is from.

An option of a command is taken from the command line, else from the variable LOCALSPEC_<OPTION>, else from
config.toml: its table for the command, such as [chat], then the keys at its top."""
EPILOG = """Examples:

  localspec config set draft ngram

  localspec config set chat.temperature 0.7

  LOCALSPEC_DRAFT=off localspec chat smollm2-135m "Hi\""""
NAME = "config"
# They ask for one thing once: what is printed, what is called how, where a result goes.
LEFT_OUT = {
    "help",
    "version",
    "json",
    "yes",
    "template",
    "name",
    "output",
    "html",
    "compare",
    "transcript",
    "dir",
}

app = typer.Typer(help=HELP, epilog=EPILOG, invoke_without_command=True)


@app.callback()
def config(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print every setting of every command, unless a subcommand follows."""
    if context.invoked_subcommand is not None:
        return
    from localspec.settings import Settings, unknown_variables

    known = settable(context.find_root().command)
    settings = Settings.read(known)
    for one in settings.values:
        one.taken()
    for line in unknown_variables(known, os.environ):
        console.say(line)
    if as_json:
        values = {"file": str(settings.file), "settings": [described(one) for one in settings.values]}
        print(json.dumps(values, ensure_ascii=False))
        return
    for number, command in enumerate(known):
        print("\n" * bool(number) + command)
        for one in settings.values:
            if one.command == command:
                place = one.place.replace("`", "") or one.source
                print(f"  {one.option.key:<20} {in_words(one.value):<24} {place}")


@app.command("path", help="Print where config.toml is, whether it exists or not.")
def show_path() -> None:
    """Print the path of the settings."""
    from localspec import settings

    print(settings.path())


@app.command("set", help="Write a setting into config.toml: KEY for every command, COMMAND.KEY for one.")
def set_value(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Such as draft, or chat.draft.")],
    value: Annotated[str, typer.Argument(help="As on the command line; several: a TOML list.")],
) -> None:
    """Check the value and write it; raises UnknownName and BadValue."""
    from localspec import settings

    table, key = named(key)
    found = settings.typed(value)
    for command, option in meant(table, key, settable(context.find_root().command)):
        try:
            settings.checked(option, settings.as_text(found))
        except ValueError as error:
            raise BadValue(
                f"`{key}` of `localspec {command}` cannot be `{value}`: {error}",
                f"See `localspec {command} --help`",
            ) from None
    change(table, key, found)
    print(f"{shown(table, key)} = {json.dumps(found, ensure_ascii=False)} in {settings.path()}")


@app.command("unset", help="Take a setting out of config.toml.")
def unset(
    key: Annotated[str, typer.Argument(help="Such as draft, or chat.draft.")],
) -> None:
    """Remove it; raises UnknownName for what is not set."""
    from localspec import settings

    table, key = named(key)
    change(table, key, None)
    print(f"{shown(table, key)} is not set any more in {settings.path()}")


def change(table: str, key: str, value: Any) -> None:
    """Set a key of the file, or remove it where the value is None."""
    from localspec import settings

    file = settings.path()
    content = settings.read_text(file) if file.exists() else ""
    tables = settings.parsed(content, file)
    place = tables.setdefault(table, {}) if table else tables
    if not isinstance(place, dict):
        raise BadValue(f"`{table}` is no table in `{file}`", f"Write `[{table}]` there, by hand")
    if value is not None:
        place[key] = value
    elif key in place:
        del place[key]
    else:
        there = [key for key, found in place.items() if not isinstance(found, dict)]
        hint = suggestion(key, there) if there else "Nothing is set there"
        raise BadValue(f"`{shown(table, key)}` is not set in `{file}`", hint)
    settings.save({name: found for name, found in tables.items() if found != {}}, file)
    if "#" in content:
        console.say(f"Comments in {file} are gone: the file was written anew")


def named(key: str) -> tuple[str, str]:
    """Return the table and the key that `chat.max-tokens` or `draft` means; no table is empty."""
    table, _, name = key.rpartition(".")
    return table, name.replace("-", "_")


def shown(table: str, key: str) -> str:
    """Return how people write a key of a table."""
    return f"{table}.{key}" if table else key


def meant(table: str, key: str, known: Commands) -> list[tuple[str, Option]]:
    """List the options that a key sets, with their commands; raises UnknownName where there is none."""
    if table and table not in known:
        raise UnknownName(f"There is no command `{table}` with settings", table, known)
    some = {table: known[table]} if table else known
    found = [(name, option) for name, options in some.items() for option in options if option.key == key]
    if not found:
        every = sorted({option.key for options in some.values() for option in options})
        raise UnknownName(f"There is no setting `{shown(table, key)}`", key, every)
    return found


def settable(tree: Any) -> dict[str, list[Option]]:
    """Return the options that may be set, by command; `tree` is the parser's command with all others."""
    found = {}
    for name, command in tree.commands.items():
        options = [option for parameter in command.params if (option := _option(command, parameter))]
        if options and not command.hidden and name != NAME:
            found[name] = options
    return found


def _option(command: Any, parameter: Any) -> Option | None:
    from localspec.settings import Option

    long = [name[2:] for name in parameter.opts if name.startswith("--")]
    if parameter.param_type_name != "option" or not long or long[0] in LEFT_OUT:
        return None
    key = long[0].replace("-", "_")
    return Option(key, parameter.name, _check(command, parameter), parameter.multiple, parameter.default)


def _check(command: Any, parameter: Any) -> Callable[[Text], None]:
    """Let the parser itself say whether an option takes a value."""

    def check(value: Text) -> None:
        try:
            parameter.process_value(command.context_class(command), value)
        except Exception as error:
            if not hasattr(error, "format_message"):  # the parser's; its class moves with typer's versions
                raise
            raise ValueError(str(error.message).rstrip(".").replace("'", "`")) from None  # type: ignore[attr-defined]

    return check


def apply(context: typer.Context) -> None:
    """Give the command that comes next what is set of its options, and remember that in `context.obj`."""
    from localspec.settings import Settings

    command = context.invoked_subcommand
    if command is None or command == NAME:
        return
    try:
        given = Settings.read(settable(context.command)).given(command)
        context.default_map = {command: {one.option.field: one.taken() for one in given}}
    except LocalspecError:
        if {"-h", "--help"}.isdisjoint(sys.argv):  # help is there to mend it
            raise
    else:
        if isinstance(context.obj, list):
            context.obj += given


def with_place(error: LocalspecError, given: list[Setting], words: list[str]) -> LocalspecError:
    """Add to an error where the value that it names is set, unless a flag among `words` gave it."""
    named = set(re.findall(r"`([^`]*)`", error.message))
    for one in given:
        flag = one.option.flag
        values = one.value if isinstance(one.value, list) else [one.value]
        parts = {part for value in values for part in (value, *re.split("[:=,]", value))} | {flag}
        by_flag = any(word == flag or word.startswith(f"{flag}=") for word in words)
        if named & parts and not by_flag and one.place not in error.message:
            error.message += f"; `{one.option.key}` is set in {one.place}"
    return error


def described(setting: Setting) -> dict[str, Any]:
    """Return a setting as `--json` prints it; `place` is null for a default."""
    return {
        "command": setting.command,
        "key": setting.option.key,
        "value": setting.value,
        "source": setting.source,
        "place": setting.place.replace("`", "") or None,
    }


def in_words(value: Any) -> str:
    """Return a value as one word or a list of them; `-` where the command finds it itself."""
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value in (None, []) else str(value)
