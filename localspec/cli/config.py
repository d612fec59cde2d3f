"""`localspec config`: show and change settings, and apply them to the commands."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import completion, console, options
from localspec.errors import BadValue, LocalspecError, UnknownName, suggestion

if TYPE_CHECKING:
    from localspec.settings import Commands, OptionText, SettableOption, SettingValue

HELP = """Show every setting: its value, and where it is set.

The value of an option comes from the command line, or else from the variable LOCALSPEC_<OPTION>, or else from
config.toml: from the command's table, such as [chat], or from the top level."""
EPILOG = """Examples:

  localspec config set draft ngram

  localspec config set chat.temperature 0.7

  LOCALSPEC_DRAFT=off localspec chat smollm2-135m "Hi\""""
NAME = "config"
# Options of a single call, such as what to print, a name, or where to write a result.
NOT_SETTABLE = {
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
    "run",
    "out",
    "force",
    "speakers",
    "vae",
    "size",
}
# Options whose name has another meaning elsewhere: command and option -> key.
OWN_KEYS = {("transcribe", "model"): "speech_model", ("transcribe", "draft"): "speech_draft"}

ALIASES = {"run": "chat", "ls": "list"}  # hidden commands, with the settings of another


def complete_keys(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the key of a setting, and after a command and a point that of its table."""

    def names() -> list[str]:
        commands = settable_options(context.find_root().command)
        own = [f"{name}.{option.key}" for name, known in commands.items() for option in known]
        return own if "." in incomplete else sorted({key.rpartition(".")[2] for key in own})

    return completion.starting(incomplete, names)


def complete_set_keys(incomplete: str) -> list[str]:
    """Complete the key of a setting that config.toml has."""

    def names() -> Iterator[str]:
        from localspec import settings

        file = settings.path()
        for key, value in settings.parse_toml(settings.read_text(file), file).items():
            yield from (f"{key}.{name}" for name in value) if isinstance(value, dict) else (key,)

    return completion.starting(incomplete, names)


app = typer.Typer(
    help=options.flowing(HELP), epilog=EPILOG, invoke_without_command=True, rich_markup_mode="rich"
)


@app.callback()
def config(context: typer.Context, as_json: options.AsJson = False) -> None:
    """Print every setting of every command, unless there is a subcommand."""
    if context.invoked_subcommand is not None:
        return
    from localspec.settings import Settings, unknown_variables

    commands = settable_options(context.find_root().command)
    settings = Settings.read(commands)
    for setting in settings.values:
        setting.for_parser()
    for line in unknown_variables(commands, os.environ):
        console.say(line)
    if as_json:
        values = {"file": str(settings.file), "settings": list(map(setting_values, settings.values))}
        console.print_json(values)
        return
    for number, command in enumerate(commands):
        console.print_text("\n" * bool(number) + command)
        for setting in settings.values:
            if setting.command == command:
                place = setting.place.replace("`", "") or setting.source
                console.print_text(f"  {setting.option.key:<20} {format_value(setting.value):<24} {place}")


@app.command("path", help="Print the path of config.toml, whether it exists or not.")
def show_path() -> None:
    """Print the path of the settings file."""
    from localspec import settings

    console.print_text(str(settings.path()))


@app.command("set", help="Write a setting into config.toml: KEY for every command, COMMAND.KEY for one.")
def set_value(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Such as draft, or chat.draft.", autocompletion=complete_keys)],
    value: Annotated[str, typer.Argument(help="As on the command line; several values as a TOML list.")],
) -> None:
    """Check a value and write it; raises UnknownName and BadValue."""
    from localspec import settings

    table, key = split_key(key)
    parsed = settings.parse_value(value)
    for command, option in options_of(table, key, settable_options(context.find_root().command)):
        try:
            settings.check(option, settings.as_text(parsed))
        except ValueError as error:
            raise BadValue(
                f"`{key}` of `localspec {command}` cannot be `{value}`: {error}",
                f"See `localspec {command} --help`",
            ) from None
    change(table, key, parsed)
    console.print_text(
        f"{join_key(table, key)} = {json.dumps(parsed, ensure_ascii=False)} in {settings.path()}"
    )


@app.command("unset", help="Remove a setting from config.toml.")
def unset(
    key: Annotated[
        str, typer.Argument(help="Such as draft, or chat.draft.", autocompletion=complete_set_keys)
    ],
) -> None:
    """Remove a setting; raises UnknownName if it is not set."""
    from localspec import settings

    table, key = split_key(key)
    change(table, key, None)
    console.print_text(f"Removed {join_key(table, key)} from {settings.path()}")


def change(table: str, key: str, value: Any) -> None:
    """Set a key of the file, or remove it if the value is None."""
    from localspec import settings

    file = settings.path()
    content = settings.read_text(file) if file.exists() else ""
    tables = settings.parse_toml(content, file)
    target = tables.setdefault(table, {}) if table else tables
    if not isinstance(target, dict):
        raise BadValue(f"`{table}` is not a table in `{file}`", f"Write `[{table}]` into the file")
    if value is not None:
        target[key] = value
    elif key in target:
        del target[key]
    else:
        keys = [known for known, current in target.items() if not isinstance(current, dict)]
        hint = suggestion(key, keys) if keys else "Nothing is set there"
        raise BadValue(f"`{join_key(table, key)}` is not set in `{file}`", hint)
    settings.save({name: current for name, current in tables.items() if current != {}}, file)
    if "#" in content:
        console.say(f"The comments in {file} were lost, because the file was rewritten")


def split_key(key: str) -> tuple[str, str]:
    """Return the table and the key of `chat.max-tokens` or `draft`; the table of the top level is empty."""
    table, _, name = key.rpartition(".")
    return table, name.replace("-", "_")


def join_key(table: str, key: str) -> str:
    """Return a key of a table as `table.key`."""
    return f"{table}.{key}" if table else key


def options_of(table: str, key: str, commands: Commands) -> list[tuple[str, SettableOption]]:
    """Return the options that a key sets, with their commands; raises UnknownName if there are none."""
    if table and table not in commands:
        raise UnknownName(f"Unknown command `{table}`, or one without settings", table, commands)
    selected = {table: commands[table]} if table else commands
    matches = [(name, option) for name, known in selected.items() for option in known if option.key == key]
    if not matches:
        keys = sorted({option.key for known in selected.values() for option in known})
        raise UnknownName(f"Unknown setting `{join_key(table, key)}`", key, keys)
    return matches


def settable_options(tree: Any) -> dict[str, list[SettableOption]]:
    """Return the options that can be set, by command; `tree` is the parser's root command."""
    settable = {}
    for name, command in tree.commands.items():
        known = [option for parameter in command.params if (option := _option(name, command, parameter))]
        if known and not command.hidden and name != NAME:
            settable[name] = known
    return settable


def _option(name: str, command: Any, parameter: Any) -> SettableOption | None:
    from localspec.settings import SettableOption

    flags = [flag[2:] for flag in parameter.opts if flag.startswith("--")]
    if parameter.param_type_name != "option" or not flags or flags[0] in NOT_SETTABLE:
        return None
    key = OWN_KEYS.get((name, flags[0]), flags[0].replace("-", "_"))
    check = _check(command, parameter)
    return SettableOption(key, parameter.name, check, parameter.multiple, parameter.default, flags[0])


def _check(command: Any, parameter: Any) -> Callable[[OptionText], None]:
    """Return a function that has the parser check a value."""

    def check(value: OptionText) -> None:
        try:
            parameter.process_value(command.context_class(command), value)
        except Exception as error:
            if not hasattr(error, "format_message"):  # not an error of the parser
                raise
            raise ValueError(str(error.message).rstrip(".").replace("'", "`")) from None  # type: ignore[attr-defined]

    return check


def apply(context: typer.Context) -> None:
    """Make the settings the defaults of the subcommand, and append them to `context.obj`."""
    from localspec.settings import Settings

    command = context.invoked_subcommand
    if command is None or command == NAME:
        return
    try:
        values = Settings.read(settable_options(context.command)).of_command(ALIASES.get(command, command))
        context.default_map = {command: {value.option.field: value.for_parser() for value in values}}
    except LocalspecError:
        if {"-h", "--help"}.isdisjoint(sys.argv):  # help must work with broken settings
            raise
    else:
        if isinstance(context.obj, list):
            context.obj += values


def with_place(error: LocalspecError, applied: list[SettingValue], words: list[str]) -> LocalspecError:
    """Add to an error where the value it names is set, unless a flag among the command's `words` gave it."""
    quoted = set(re.findall(r"`([^`]*)`", error.message))
    for setting in applied:
        flag = setting.option.flag
        values = setting.value if isinstance(setting.value, list) else [setting.value]
        parts = {part for value in values for part in (value, *re.split("[:=,]", value))} | {flag}
        by_flag = any(word == flag or word.startswith(f"{flag}=") for word in words)
        if quoted & parts and not by_flag and setting.place not in error.message:
            error.message += f"; `{setting.option.key}` is set in {setting.place}"
    return error


def setting_values(setting: SettingValue) -> dict[str, Any]:
    """Return a setting as `--json` prints it; `place` is null for a default."""
    return {
        "command": setting.command,
        "key": setting.option.key,
        "value": setting.value,
        "source": setting.source,
        "place": setting.place.replace("`", "") or None,
    }


def format_value(value: Any) -> str:
    """Return a value as text; `-` stands for an unset one."""
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value in (None, []) else str(value)
