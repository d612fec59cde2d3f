"""What the user has set: defaults < config.toml < LOCALSPEC_* < flags, and where each value is from.

The file's keys at the top hold for every command that has such an option, those of a table `[chat]` for that
command alone. Values are kept as a command line writes them; whoever knows the options converts them.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.errors import BadValue, StorageError, UnknownName, suggestion

PREFIX = "LOCALSPEC_"
FILE_VARIABLE = f"{PREFIX}CONFIG"
DEFAULT, FILE, ENVIRONMENT = "default", "file", "environment"
OTHERS = {"CONFIG", "HOME"}  # variables that are no option
TESTS = "TEST_"

Text = str | list[str]

_TABLE = re.compile(r"""\s*\[\s*["']?([\w-]+)["']?\s*\]""")
_KEY = re.compile(r"""\s*(?:["']?([\w-]+)["']?\s*\.\s*)?["']?([\w-]+)["']?\s*=""")


@dataclass(frozen=True, slots=True)
class Option:
    """An option that may be set: its key and field, and a check that raises ValueError with what is wrong."""

    key: str  # as the file writes it: max_tokens
    field: str  # as the command's function calls it
    check: Callable[[Text], None]
    many: bool = False
    default: Any = None

    @property
    def variable(self) -> str:
        """The variable of the environment that sets it."""
        return PREFIX + self.key.upper()

    @property
    def flag(self) -> str:
        """What sets it on the command line."""
        return "--" + self.key.replace("_", "-")


Commands = Mapping[str, Sequence[Option]]


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of one option of one command, its source, and the exact place."""

    command: str
    option: Option
    value: Any  # text or texts, as the command line would have them; a default as it is
    source: str = DEFAULT
    place: str = ""  # "FILE, line 3", or a variable's name

    def taken(self) -> Any:
        """Return the value for the parser; raises BadValue, with the place, for one that does not fit."""
        if self.source == DEFAULT:
            return self.value
        try:
            return checked(self.option, self.value)
        except ValueError as error:
            raise BadValue(
                f"`{self.option.key}` cannot be `{self.value}` in {self.place}: {error}",
                f"See `localspec {self.command} --help`",
            ) from None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that is set, of every command."""

    file: Path
    values: tuple[Setting, ...]

    @classmethod
    def read(cls, commands: Commands) -> Settings:
        """Read the file and the environment; raises BadValue and UnknownName for a file that is wrong.

        Values are not checked yet: a command need not stumble over another one's.
        """
        file = path()
        content = read_text(file)
        tables = parsed(content, file)
        check_names(tables, commands, file, content)
        found = [
            _setting(name, option, tables, file, content)
            for name, options in commands.items()
            for option in options
        ]
        return cls(file, tuple(found))

    def given(self, command: str) -> list[Setting]:
        """List what is set of a command's options."""
        return [one for one in self.values if one.command == command and one.source != DEFAULT]


def path() -> Path:
    """Where the settings are: `LOCALSPEC_CONFIG`, else `config.toml` in the user's configuration folder."""
    import platformdirs

    chosen = os.environ.get(FILE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.user_config_path("localspec", appauthor=False) / "config.toml"


def read_text(file: Path) -> str:
    """Return the file's text, empty where there is none; raises BadValue where the chosen one is missing."""
    try:
        return file.read_text("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get(FILE_VARIABLE):
            raise BadValue(
                f"There is no file `{file}`, which `{FILE_VARIABLE}` names",
                "Check it; `localspec config set KEY VALUE` makes the file",
            ) from None
        return ""
    except UnicodeDecodeError:
        raise BadValue(f"`{file}` is not UTF-8 text", "Save it as UTF-8") from None
    except OSError as error:
        raise StorageError(f"`{file}` cannot be read: {error.strerror}", f"See `ls -l {file}`") from error


def parsed(content: str, file: Path) -> dict[str, Any]:
    """Return the file's tables; raises BadValue, with the place, for what is not TOML."""
    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise BadValue(
            f"`{file}` is not TOML: {error}", 'A line is `draft = "ngram"`, a table `[chat]`; mend it by hand'
        ) from None


def check_names(tables: Mapping[str, Any], commands: Commands, file: Path, content: str) -> None:
    """Raise UnknownName for a key or a table that nothing has, naming the nearest."""
    every = {option.key for options in commands.values() for option in options}
    for name, value in tables.items():
        if isinstance(value, dict):
            if name not in commands:
                raise UnknownName(f"There is no command `{name}`, for a table in `{file}`", name, commands)
            keys = {option.key for option in commands[name]}
            for key in value.keys() - keys:
                raise _unknown(f"{name}.{key}", key, keys, _place(file, content, name, key))
        elif name not in every:
            raise _unknown(name, name, every, _place(file, content, "", name))


def _unknown(shown: str, key: str, known: Iterable[str], place: str) -> UnknownName:
    return UnknownName(f"There is no setting `{shown}`, which is in {place}", key, sorted(known))


def unknown_variables(commands: Commands, environment: Mapping[str, str]) -> list[str]:
    """List the variables that look like settings and are none, each with what it may mean."""
    known = {option.key.upper() for options in commands.values() for option in options}
    names = sorted(name.removeprefix(PREFIX) for name in environment if name.startswith(PREFIX))
    wrong = [name for name in names if name not in known | OTHERS and not name.startswith(TESTS)]
    near = {name: suggestion(name, sorted(known)).replace(" `", f" `{PREFIX}") for name in wrong}
    return [f"`{PREFIX}{name}` sets nothing. {hint}" for name, hint in near.items()]


def _setting(command: str, option: Option, tables: Mapping[str, Any], file: Path, content: str) -> Setting:
    """Find the value of an option: the environment's, the table's, the file's, else the default."""
    if written := os.environ.get(option.variable):
        value = _listed(written) if option.many else written
        return Setting(command, option, value, ENVIRONMENT, f"`{option.variable}`")
    own, key = tables.get(command), option.key
    if isinstance(own, dict) and key in own:
        return Setting(command, option, as_text(own[key]), FILE, _place(file, content, command, key))
    if key in tables:
        return Setting(command, option, as_text(tables[key]), FILE, _place(file, content, "", key))
    return Setting(command, option, option.default)


def _listed(written: str) -> Text:
    """Read a variable of an option that may be repeated: a TOML list, else one value, spaces and all."""
    if not written.startswith("["):
        return [written]
    try:
        found = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return [written]
    return [str(as_text(one)) for one in found]


def as_text(value: Any) -> Any:
    """Return a value of TOML as a command line writes it."""
    if isinstance(value, list):
        return [as_text(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def checked(option: Option, value: Any) -> Text:
    """Return a value as the option takes it, one text or several; raises ValueError where it cannot."""
    found: Text = _several(value) if option.many else _single(value)
    option.check(found)
    return found


def _single(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("it takes one value")
    return value


def _several(value: Any) -> list[str]:
    return [_single(one) for one in value] if isinstance(value, list) else [_single(value)]


def _place(file: Path, content: str, table: str, key: str) -> str:
    """Return where a key is set: the file, and the line where it is plainly written."""
    current = ""
    for number, line in enumerate(content.splitlines(), 1):
        if found := _TABLE.match(line):
            current = found[1]
        elif (found := _KEY.match(line)) and (found[1] or current, found[2]) == (table, key):
            return f"`{file}`, line {number}"
    return f"`{file}`"


def typed(written: str) -> Any:
    """Return what a command line wrote as TOML would hold it: a number, a truth, a list, else the text."""
    try:
        found = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        return written
    same = isinstance(found, bool | int | float) and as_text(found) == written
    return found if same or isinstance(found, list) else written


def save(tables: Mapping[str, Any], file: Path) -> None:
    """Write the settings, whole or not at all; raises StorageError where that cannot be."""
    import tomli_w

    whole = file.resolve()  # a link, as dotfiles often are, stays one
    if whole.exists() and not whole.is_file():
        raise StorageError(f"`{file}` is not a file", f"Choose one with `{FILE_VARIABLE}`")
    partial = whole.with_name(f".{whole.name}.partial-{os.getpid()}")
    try:
        whole.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as out:
            tomli_w.dump(tables, out)
            out.flush()
            os.fsync(out.fileno())
        if whole.exists():
            partial.chmod(whole.stat().st_mode & 0o777)
        partial.replace(whole)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise StorageError(
            f"`{file}` cannot be written: {error.strerror}", f"Choose another file with `{FILE_VARIABLE}`"
        ) from error
