"""Download a model into the library."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.errors import BadValue
from localspec.library import catalogue, storage
from localspec.library.catalogue import CatalogueEntry
from localspec.library.download import cache
from localspec.library.download.fetch import fetch_first
from localspec.library.download.hub import DownloadSize, OnSize
from localspec.library.importing.source import SIZE_FACTOR, GraphMode, ImportSource
from localspec.library.installed import InstalledModels
from localspec.library.locks import locked
from localspec.library.model import StoredModel
from localspec.library.progress import Progress
from localspec.library.sources import Source

_MODEL_FORMATS = {"openvino": "openvino", "gguf": "gguf", "hf": "safetensors"}  # catalogue's -> model's


CACHE_SHARE = 0.25  # of a graph's bytes that compiled graphs take: 3 to 22 % were measured on CPUs
LONGEST = 200  # bytes of a model's name: files named after it have endings


@dataclass(frozen=True, slots=True)
class PullRequest:
    """A request for a download: the files, and the form in which to keep them."""

    name: str  # of the model in the library
    sources: tuple[Source, ...]  # tried in this order
    graph: GraphMode
    digest: str = ""  # sha256 that a GGUF must have
    format: str | None = None  # openvino, gguf or hf; None allows any
    on_size: OnSize | None = None  # called before the first byte


def request_for(
    source: Source, graph: GraphMode, format: str | None = None, on_size: OnSize | None = None
) -> PullRequest:
    """Return the request for one source, under the catalogue's name if it is a catalogue source."""
    entry = next((entry for entry in catalogue.entries() if source in entry.sources), None)
    name, digest = (entry.name, entry.digest) if entry else (_name_of(source), "")
    return PullRequest(name, (source,), graph, digest, format, on_size)


def name_for(
    models: InstalledModels, entry: CatalogueEntry, precision: str | None, sources: Sequence[Source]
) -> str:
    """Return the library's name for a catalogue model.

    It is the entry's own name if the sources are its default ones and no other build has that name.
    """
    with_precision, default = catalogue.library_name(entry, precision), models.load(entry.name)
    if sources[0] != entry.sources[0] or models.load(with_precision):
        return with_precision
    return entry.name if default is None or default.manifest.comes_from(sources) else with_precision


def pull(models: InstalledModels, request: PullRequest, progress: Progress) -> StoredModel:
    """Download and import a model unless it is installed; wait for another process that does the same."""

    def on_size(size: DownloadSize) -> None:
        size = replace(size, disk=disk_needed(size, request.graph))
        if request.on_size:
            request.on_size(size)
        else:
            _say_disk(models, request.name, size, progress)
        _check_free_space(models, size, request.graph)

    if model := _installed(models, request):
        return model
    with locked(models.models, request.name, progress):
        if model := _installed(models, request) or models.by_digest(request.digest):
            return model
        into = models.home / "downloads" / request.name
        format = _MODEL_FORMATS.get(request.format or "", "")
        fetched = fetch_first(request.sources, into, progress, request.digest, on_size, format)
        source = ImportSource.from_download(fetched, progress)
        model = models.by_digest(source.digest) or models.import_model(
            request.name, source, progress, request.graph
        )
        shutil.rmtree(into, ignore_errors=True)
    return model


def _installed(models: InstalledModels, request: PullRequest) -> StoredModel | None:
    """Return the installed model; raise BadValue if it does not have the requested format."""
    model, format = models.load(request.name), request.format
    if model and format and model.files_in(_MODEL_FORMATS[format]) is None:
        raise BadValue(
            f"`{request.name}` is installed in another format", f"Type `localspec rm {request.name}` first"
        )
    return model


def disk_needed(size: DownloadSize, graph: GraphMode) -> int:
    """Return about how many bytes a model takes at most: its download, its graph and its caches.

    The size of a package is unknown; that of the catalogue's model is estimated from its parameters.
    """
    weights = size.size or _estimate(size.source)
    download = size.download if size.size else weights
    if graph == "skip":
        return download
    converted = 0 if size.format == "openvino" else int(SIZE_FACTOR * weights)
    return download + converted + int(CACHE_SHARE * (converted or weights))


def _estimate(source: Source) -> int:
    entry = next((entry for entry in catalogue.entries() if source in entry.sources), None)
    if entry is None:
        return 0
    speech = entry.kind != catalogue.TEXT
    return entry.download_bytes() if speech else entry.weight_bytes(entry.precision_from(source))


def _say_disk(models: InstalledModels, name: str, size: DownloadSize, progress: Progress) -> None:
    """Say what a download takes in all, unless all of it is there."""
    if size.disk and (size.download or not size.size):
        free = storage.free_bytes(models.home)
        progress.say(
            f"`{name}` takes up to {size.disk / 1e9:.1f} GB of disk with its graph and caches,"
            f" {free / 1e9:.1f} GB free"
        )


def _check_free_space(models: InstalledModels, size: DownloadSize, graph: GraphMode) -> None:
    """Raise StorageError, before the download, if the model and its graph do not fit."""
    converted = 0 if size.format == "openvino" or graph == "skip" else int(SIZE_FACTOR * size.size)
    download = size.download * cache.shares_disk_with(models.models)
    storage.check_free_space(models.models, converted + download)


def _name_of(source: Source) -> str:
    """Name a model that is not in the catalogue: `OWNER--NAME`, with the file and revision if given."""
    parts = (source.name, source.file.removesuffix(".gguf"), source.version[:12])
    name = re.sub(r"[^\w.-]+", "--", "--".join(part for part in parts if part)).lstrip(".")
    if len(name.encode()) <= LONGEST:
        return name
    return f"{source.name.replace('/', '--')[:100]}--{storage.digest_of_text(str(source))[:12]}"
