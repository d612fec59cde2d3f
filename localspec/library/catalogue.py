"""The models localspec knows by name: the TOML files of the `models` folder."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.errors import BadValue, UnknownModel, suggestion
from localspec.library.sources import Source

HERE = Path(__file__)


OPENVINO, GGUF, HF = "openvino", "gguf", "hf"
PRECISIONS = {"int4": ("Q4_K_M", "Q4_0"), "int8": ("Q8_0",), "fp16": ("F16", "BF16")}  # -> types of a GGUF
BYTES = {"int4": 0.56, "int8": 1.06, "fp16": 2.0}  # of a weight, scales included
BESIDE = 1.0e9  # bytes beside the weights: the program, and a cache of some thousand tokens
SIZES = {"M": 1e6, "B": 1e9}


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalogue: what its public card says, and where it can be had in which form."""

    name: str
    title: str
    licence: str
    parameters: str  # as people say it: 135M, 8.2B
    context: int  # tokens
    sources: tuple[Source, ...]  # tried in this order where nothing else is asked for
    layers: int = 0  # 0 where the card does not say; of a speech model the decoder's
    tokenizer: str = ""  # models of one family write the same tokens
    aliases: tuple[str, ...] = ()
    digest: str = ""  # sha256 of the GGUF file; empty where it is not known
    draft: str | None = None  # the catalogue name of a small model that guesses for it
    kind: str = "text"  # or speech
    forms: Mapping[str, Mapping[str, Source]] = field(
        default_factory=dict
    )  # form -> precision or type -> where

    def memory(self, precision: str) -> int:
        """Return the bytes of memory that it takes at least, about."""
        return int(float(self.parameters[:-1]) * SIZES[self.parameters[-1]] * BYTES[precision] + BESIDE)

    def precision_from(self, source: Source) -> str:
        """Return the precision in which a model of that source runs; a graph of 16 bits is made with 8."""
        for form, there in self.forms.items():
            for key in (key for key, known in there.items() if known == source):
                if form == OPENVINO:
                    return key
                if form == HF:
                    return "int8"
                return next((name for name, types in PRECISIONS.items() if key in types), "int4")
        return "int4"

    def offered(self, precision: str | None = None, form: str | None = None) -> list[Source]:
        """Return where it can be had in that precision and form, the best first; None is whatever there is.

        The weights of a Hugging Face folder have 16 bits; their graph is made with 8.
        """
        if precision is None and form is None:
            return list(self.sources)
        found = []
        for name in (OPENVINO, GGUF, HF):
            there = self.forms.get(name, {})
            wanted = {OPENVINO: (precision,), GGUF: PRECISIONS.get(precision or "", ())}.get(name, ())
            found += [
                source
                for key, source in there.items()
                if form in (None, name)
                and (precision is None or key in wanted or _steps(name, precision, form))
            ]
        return found


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Return all models of the catalogue, families together and small ones first."""
    files = sorted(_folder().glob("*.toml"))
    return tuple(_entry(table) for file in files for table in _tables(file))


def find(name: str) -> Entry:
    """Return the entry of that name or alias; raise UnknownModel, naming the nearest."""
    found = lookup(name)
    if found is None:
        raise UnknownModel(f"There is no model called `{name}`", suggestion(name, names()))
    return found


def lookup(name: str) -> Entry | None:
    """Return the entry of that name or alias, if there is one."""
    wanted = name.lower()
    return next((entry for entry in entries() if wanted in (entry.name, *entry.aliases)), None)


def asked(name: str) -> tuple[Entry, str | None] | None:
    """Return the entry of a name and the precision behind its last colon: `qwen3-8b:int8`, `qwen3:8b`."""
    if found := lookup(name):
        return found, None
    start, _, precision = name.rpartition(":")
    entry = lookup(start) if precision in PRECISIONS else None
    return (entry, precision) if entry else None


def kept_as(entry: Entry, precision: str | None) -> str:
    """Return the name under which the library keeps an entry in a precision, None for its first source's."""
    return f"{entry.name}-{precision}" if precision else entry.name


def offers(name: str, precision: str | None, form: str | None) -> tuple[Source, ...]:
    """Return where a model of the catalogue can be had; raises BadValue where it cannot be had so."""
    found = asked(name)
    assert found is not None
    entry, known = found
    there = entry.offered(precision or known, form)
    if not there:
        argument_constraints = [f"{kind} ({', '.join(sources)})" for kind, sources in entry.forms.items()]
        raise BadValue(
            f"`{entry.name}` is not to be had as {' '.join(filter(None, (precision or known, form)))}",
            f"There is {', '.join(argument_constraints)}; `localspec quantize` makes other bits of it",
        )
    return tuple(there)


def _steps(form: str, precision: str, wanted: str | None) -> bool:
    """Tell whether weights of 16 bits will do: a graph of 8 can be made, or the folder itself is wanted."""
    return form == HF and (precision == "int8" or (precision == "fp16" and wanted == HF))


def by_digest(digest: str) -> Entry | None:
    """Return the entry whose GGUF file has this sha256."""
    return next((entry for entry in entries() if entry.digest == digest), None)


def names() -> list[str]:
    """List every name, without aliases."""
    return [entry.name for entry in entries()]


def _folder() -> Path:
    """The files lie in the package when it was installed, and in the repository's root in a checkout."""
    shipped = HERE.parents[1] / "_models"
    return shipped if shipped.is_dir() else HERE.parents[2] / "models"


def _tables(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(file.read_text("utf-8"))["model"]
    return found


def _entry(table: dict[str, Any]) -> Entry:
    """Read one table: its forms become sources, ready graphs first unless `first` names another form."""
    forms: dict[str, dict[str, Source]] = {}
    for form in (OPENVINO, GGUF):
        if there := table.pop(form, None):
            forms[form] = {key: Source.parse(f"hf:{text}") for key, text in there.items()}
    package = table.pop("pypi", None)
    if hub := table.pop(HF, None):
        forms[HF] = {"fp16": Source.parse(f"hf:{hub}")}
    order = sorted(forms, key=lambda form: form != table.get("first"))
    table.pop("first", None)
    found = [next(iter(forms[form].values())) for form in order]
    if package:
        found.insert(-1 if HF in forms else len(found), Source.parse(f"pypi:{package}"))
    return Entry(sources=tuple(found), aliases=tuple(table.pop("aliases", ())), forms=forms, **table)
