"""Parts by name: "ngram:longest=4" becomes an object; the name of a file or a package is its part's name.

A part is the one class of its contract in `localspec/<kind>/<name>.py`, or the one that the package
`localspec/<kind>/<name>/` exports. An installed package adds parts through entry points in the groups
`localspec.<kind>`. The options of a part are the keyword-only parameters of its `__init__`, annotated with
an `Option`; defaults, help and limits are read from there.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import typing
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, NamedTuple

from localspec.core import contracts
from localspec.core.blocks.parts import BlockSampler
from localspec.drafting.build_step import BuildStep
from localspec.errors import BadValue, UnknownName, suggestion
from localspec.output.tool_format import ToolFormat


class Kind(NamedTuple):
    """A kind of parts: the class that each part extends, and what messages call one of them."""

    contract: type
    title: str


FOR_TESTS = {"engines": ("toy",)}  # a fake for tests and an example for readers
KINDS = {
    "engines": Kind(contracts.Engine, "engine"),
    "drafters": Kind(contracts.Drafter, "drafter"),
    "draft_length": Kind(contracts.DraftLengthPolicy, "draft-length policy"),
    "verifiers": Kind(contracts.Verifier, "verifier"),
    "steps": Kind(BuildStep, "build step"),
    "decodings": Kind(contracts.Decoding, "decoding"),
    "samplers": Kind(BlockSampler, "sampler"),
    "tool_formats": Kind(ToolFormat, "tool-call format"),
}
REQUIRED = inspect.Parameter.empty
SWITCHES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


@dataclass(frozen=True, slots=True)
class Option:
    """The meaning of a part's option, and the numbers or words it takes."""

    help: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()

    def allows(self, value: Any) -> bool:
        """Return whether `value` is within the limits; not-a-number never is."""
        if self.least is not None and not value >= self.least:
            return False
        return self.most is None or value <= self.most

    @property
    def range(self) -> str:
        """The limits in words."""
        if self.most is None:
            return f"from {self.least:.15g} on"
        if self.least is None:
            return f"up to {self.most:.15g}"
        return f"from {self.least:.15g} to {self.most:.15g}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One option of a part: its name, type, default (REQUIRED when there is none) and meaning."""

    name: str
    type: type
    default: Any
    option: Option

    @property
    def required(self) -> bool:
        """Return whether there is no default."""
        return self.default is REQUIRED

    def parse(self, text: str, part: str) -> Any:
        """Return the value that `text` stands for; raises BadValue."""
        value = self._read(text, part)
        choices = self.option.choices
        if choices and value not in choices:
            raise self._bad(text, part, suggestion(text, choices))
        if not self.option.allows(value):
            raise self._bad(text, part, f"It takes a number {self.option.range}")
        return value

    def _read(self, text: str, part: str) -> Any:
        if self.type is bool:
            if text.lower() not in SWITCHES:
                raise self._bad(text, part, "It takes `on` or `off`")
            return SWITCHES[text.lower()]
        try:
            return self.type(text)
        except ValueError:
            kind = "a whole number" if self.type is int else "a number"
            raise self._bad(text, part, f"It takes {kind}") from None

    def _bad(self, text: str, part: str, hint: str) -> BadValue:
        return BadValue(f"`{self.name}` of `{part}` is `{text}`", hint)


@dataclass(frozen=True, slots=True)
class Part:
    """A part that exists: its kind, name and class."""

    kind: str
    name: str
    made_by: type[Any]

    @property
    def summary(self) -> str:
        """The first sentence of its documentation."""
        return (self.made_by.__doc__ or "").split("\n")[0].strip()

    @property
    def settings(self) -> dict[str, Setting]:
        """Its options by name."""
        if "__init__" not in vars(self.made_by):
            return {}
        hints = typing.get_type_hints(vars(self.made_by)["__init__"], include_extras=True)
        parameters = inspect.signature(self.made_by).parameters.values()
        return {
            found.name: _setting(found, hints[found.name])
            for found in parameters
            if found.kind is inspect.Parameter.KEYWORD_ONLY
        }


@dataclass(frozen=True, slots=True)
class Spec:
    """A part with values for its options, as in `ngram:longest=4`."""

    part: Part
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The part's name."""
        return self.part.name

    def make(self, *arguments: Any) -> Any:
        """Return the object, made with `arguments` before the options."""
        return self.part.made_by(*arguments, **self.options)

    def __str__(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name


def parts(kind: str) -> dict[str, Part]:
    """Return the parts of a kind by name."""
    return {name: part(kind, name) for name in names(kind)}


@functools.cache
def names(kind: str) -> tuple[str, ...]:
    """Return the names of the parts of a kind: the shipped ones, and those of installed packages."""
    return tuple(sorted({*_shipped(kind), *_installed(kind)}))


def offered(kind: str) -> tuple[str, ...]:
    """Return the names of the parts that users are shown: all but those for tests, which work when named."""
    return tuple(name for name in names(kind) if name not in FOR_TESTS.get(kind, ()))


@functools.cache
def _shipped(kind: str) -> frozenset[str]:
    folder = importlib.import_module(f"localspec.{kind}")
    return frozenset(found.name for found in pkgutil.iter_modules(folder.__path__))


@functools.cache
def _installed(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points that installed packages declare for a kind, by name."""
    return {found.name: found for found in entry_points(group=f"localspec.{kind}")}


@functools.cache
def part(kind: str, name: str) -> Part:
    """Return one part.

    Raises UnknownName with the nearest names, and BadValue for an installed package whose part cannot be
    used.
    """
    if name not in names(kind):
        raise UnknownName(f"Unknown {KINDS[kind].title} `{name}`", name, offered(kind))
    if name in _installed(kind):
        return Part(kind, name, _load(kind, _installed(kind)[name]))
    module = importlib.import_module(f"localspec.{kind}.{name}")
    (made_by,) = (
        found for found in vars(module).values() if _defined_in(found, module, KINDS[kind].contract)
    )
    return Part(kind, name, made_by)


def _defined_in(found: Any, module: ModuleType, contract: type) -> bool:
    """Return whether `found` is a class of `contract` that belongs to a module, or to a file of a package."""
    own = inspect.isclass(found) and f"{found.__module__}.".startswith(f"{module.__name__}.")
    return own and issubclass(found, contract)


def _load(kind: str, point: EntryPoint) -> type[Any]:
    """Return the class of an installed package's part; raises BadValue where it cannot be used."""
    package = point.dist.name if point.dist else point.value
    hint = f"Update the package, or remove it: `pip uninstall {package}`"
    if point.name in _shipped(kind):
        raise BadValue(f"`{package}` has a {KINDS[kind].title} called `{point.name}`, as localspec has", hint)
    try:
        found = point.load()
    except Exception as error:
        raise BadValue(f"`{point.name}` of `{package}` cannot be imported: {error}", hint) from error
    contract = KINDS[kind].contract
    if not (inspect.isclass(found) and issubclass(found, contract)):
        raise BadValue(f"`{point.name}` of `{package}` is no `{contract.__name__}`", hint)
    return found


def parse(kind: str, text: str) -> Spec:
    """Return the spec that "name:option=value,..." stands for; raises UnknownName and BadValue."""
    name, _, rest = text.partition(":")
    found = part(kind, name)
    settings = found.settings
    options: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if key not in settings:
            raise UnknownName(f"`{name}` has no option called `{key}`", key, settings)
        if not equals:
            raise BadValue(f"`{key}` of `{name}` has no value", f"Type `{name}:{key}=...`")
        if key in options:
            raise BadValue(f"`{key}` of `{name}` has two values", "Give it once")
        options[key] = settings[key].parse(value, name)
    missing = [key for key, setting in settings.items() if setting.required and key not in options]
    if missing:
        raise BadValue(f"`{name}` needs `{missing[0]}`", f"Type `{name}:{missing[0]}=...`")
    return Spec(found, options)


def _setting(parameter: inspect.Parameter, hint: Any) -> Setting:
    kind, option = typing.get_args(hint)
    return Setting(parameter.name, kind, parameter.default, option)
