"""The user's settings: defaults < config.toml < LOCALSPEC_* < flags, with the place where each is set.

A key at the top level of the file applies to every command with that option, a key in a table such as
`[chat]` to that command only. Values are texts, as on the command line; the parser converts them.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.disk import atomic
from localspec.errors import BadValue, StorageError, UnknownName, printable, suggestion

PREFIX = "LOCALSPEC_"
FILE_VARIABLE = f"{PREFIX}CONFIG"
DEFAULT, FILE, ENVIRONMENT = "default", "file", "environment"
NOT_OPTIONS = {"CONFIG", "DEBUG", "HOME"}
TEST_PREFIX = "TEST_"

OptionText = str | list[str]  # a list for an option that may be repeated

_TABLE = re.compile(r"""\s*\[\s*["']?([\w-]+)["']?\s*\]""")
_KEY = re.compile(r"""\s*(?:["']?([\w-]+)["']?\s*\.\s*)?["']?([\w-]+)["']?\s*=""")


@dataclass(frozen=True, slots=True)
class SettableOption:
    """An option that can be set; `check` raises ValueError for a wrong value."""

    key: str  # in the file, such as max_tokens
    field: str  # the parameter of the command's function
    check: Callable[[OptionText], None]
    many: bool = False
    default: Any = None
    option: str = ""  # its name on the command line, if that is not the key

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return PREFIX + self.key.upper()

    @property
    def flag(self) -> str:
        """The flag that sets it on the command line."""
        return "--" + (self.option or self.key.replace("_", "-"))


Commands = Mapping[str, Sequence[SettableOption]]


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The value of one option of one command, with its source and exact place."""

    command: str
    option: SettableOption
    value: Any  # an OptionText, or a default of any type
    source: str = DEFAULT
    place: str = ""  # "FILE, line 3", or the name of a variable

    def for_parser(self) -> Any:
        """Return the value for the parser; raises BadValue with the place for a wrong one."""
        if self.source == DEFAULT:
            return self.value
        try:
            return check(self.option, self.value)
        except ValueError as error:
            raise BadValue(
                f"`{self.option.key}` cannot be `{self.value}` in {self.place}: {error}",
                f"See `localspec {self.command} --help`",
            ) from None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of every command."""

    file: Path
    values: tuple[SettingValue, ...]

    @classmethod
    def read(cls, commands: Commands) -> Settings:
        """Read the file and the environment; raises BadValue and UnknownName for a wrong file.

        Values are not checked here, so that a wrong one does not stop other commands.
        """
        file = path()
        content = read_text(file)
        tables = parse_toml(content, file)
        check_names(tables, commands, file, content)
        values = [
            _find_value(name, option, tables, file, content)
            for name, options in commands.items()
            for option in options
        ]
        return cls(file, tuple(values))

    def of_command(self, command: str) -> list[SettingValue]:
        """Return the settings of a command, without defaults."""
        return [value for value in self.values if value.command == command and value.source != DEFAULT]


def path() -> Path:
    """Return the path of the file: `LOCALSPEC_CONFIG`, or `config.toml` in the configuration folder."""
    import platformdirs

    chosen = os.environ.get(FILE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.user_config_path("localspec", appauthor=False) / "config.toml"


def read_text(file: Path) -> str:
    """Return the file's text, empty without one; raises BadValue if `LOCALSPEC_CONFIG` names no file."""
    try:
        return file.read_text("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get(FILE_VARIABLE):
            raise BadValue(
                f"No such file: `{file}`, which `{FILE_VARIABLE}` names",
                "Check it; `localspec config set KEY VALUE` creates the file",
            ) from None
        return ""
    except UnicodeDecodeError:
        raise BadValue(f"`{file}` is not UTF-8 text", "Save it as UTF-8") from None
    except OSError as error:
        raise StorageError(f"`{file}` cannot be read: {error.strerror}", f"See `ls -l {file}`") from error


def parse_toml(content: str, file: Path) -> dict[str, Any]:
    """Return the file's tables; raises BadValue with the place for invalid TOML."""
    try:
        return tomllib.loads(content)
    except (ValueError, RecursionError) as error:  # also of numbers with too many digits
        raise BadValue(
            f"`{file}` is not TOML: {printable(str(error), 200)}",
            'A line is `draft = "ngram"`, a table `[chat]`; fix it by hand',
        ) from None


def check_names(tables: Mapping[str, Any], commands: Commands, file: Path, content: str) -> None:
    """Raise UnknownName for an unknown key or table; the hint has the nearest names."""
    all_keys = {option.key for options in commands.values() for option in options}
    for name, value in tables.items():
        if isinstance(value, dict):
            if name not in commands:
                raise UnknownName(
                    f"Unknown command `{printable(name)}` of a table in `{file}`", name, commands
                )
            keys = {option.key for option in commands[name]}
            for key in value.keys() - keys:
                raise _unknown(f"{name}.{key}", key, keys, _place(file, content, name, key))
        elif name not in all_keys:
            raise _unknown(name, name, all_keys, _place(file, content, "", name))


def _unknown(shown: str, key: str, known: Iterable[str], place: str) -> UnknownName:
    return UnknownName(f"Unknown setting `{printable(shown)}` in {place}", key, sorted(known))


def unknown_variables(commands: Commands, environment: Mapping[str, str]) -> list[str]:
    """Return a line for each variable with an unknown LOCALSPEC_ name, with the nearest names."""
    known = {option.key.upper() for options in commands.values() for option in options}
    names = sorted(name.removeprefix(PREFIX) for name in environment if name.startswith(PREFIX))
    wrong = [name for name in names if name not in known | NOT_OPTIONS and not name.startswith(TEST_PREFIX)]
    hints = {name: suggestion(name, sorted(known)).replace(" `", f" `{PREFIX}") for name in wrong}
    return [f"`{PREFIX}{name}` sets nothing. {hint}" for name, hint in hints.items()]


def _find_value(
    command: str, option: SettableOption, tables: Mapping[str, Any], file: Path, content: str
) -> SettingValue:
    """Find an option's value: in the environment, the command's table, the top level, or else the default."""
    if text := os.environ.get(option.variable):
        value = _parse_list(text) if option.many else text
        return SettingValue(command, option, value, ENVIRONMENT, f"`{option.variable}`")
    own, key = tables.get(command), option.key
    if isinstance(own, dict) and key in own:
        return SettingValue(command, option, as_text(own[key]), FILE, _place(file, content, command, key))
    if key in tables:
        return SettingValue(command, option, as_text(tables[key]), FILE, _place(file, content, "", key))
    return SettingValue(command, option, option.default)


def _parse_list(text: str) -> OptionText:
    """Parse a variable of an option that may be repeated: a TOML list, or else one value with its spaces."""
    if not text.startswith("["):
        return [text]
    try:
        values = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return [text]
    return [str(as_text(value)) for value in values]


def as_text(value: Any) -> Any:
    """Return a TOML value as text for the command line."""
    if isinstance(value, list):
        return [as_text(each) for each in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def check(option: SettableOption, value: Any) -> OptionText:
    """Return a value as one text or several, as the option needs it; raises ValueError for a wrong one."""
    text: OptionText = _several(value) if option.many else _single(value)
    option.check(text)
    return text


def _single(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it takes one value")
    return value


def _several(value: Any) -> list[str]:
    return [_single(each) for each in value] if isinstance(value, list) else [_single(value)]


def _place(file: Path, content: str, table: str, key: str) -> str:
    """Return where a key is set: the file, and the line if it can be found."""
    current = ""
    for number, line in enumerate(content.splitlines(), 1):
        if match := _TABLE.match(line):
            current = match[1]
        elif (match := _KEY.match(line)) and (match[1] or current, match[2]) == (table, key):
            return f"`{file}`, line {number}"
    return f"`{file}`"


def parse_value(text: str) -> Any:
    """Return a text of the command line as a TOML value: a number, a boolean, a list, or else the text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    same = isinstance(value, bool | int | float) and as_text(value) == text
    return value if same or isinstance(value, list) else text


def save(tables: Mapping[str, Any], file: Path) -> None:
    """Write the settings atomically; raises StorageError."""
    import tomli_w

    target = file.resolve()  # keep a link, as dotfiles often are
    if target.exists() and not target.is_file():
        raise StorageError(f"`{file}` is not a file", f"Choose one with `{FILE_VARIABLE}`")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(target, tomli_w.dumps(tables))
    except OSError as error:
        raise StorageError(
            f"`{file}` cannot be written: {error.strerror}", f"Choose another file with `{FILE_VARIABLE}`"
        ) from error
