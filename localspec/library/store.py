"""The models on this machine: find one by whatever name it has, fetch and import it when it is missing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from localspec.errors import BadValue, UnknownModel, UnsupportedModel, suggestion
from localspec.formats.files import weight_files
from localspec.library import catalogue, disk, importing, manifest
from localspec.library.arrival import Arrival, Graph
from localspec.library.fetch import fetch_first
from localspec.library.locks import locked, partial_of, sweep
from localspec.library.manifest import Manifest, Place
from localspec.library.model import FORMS, GRAPH, Model
from localspec.library.progress import Progress
from localspec.library.sources import Source

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


_OURS = {
    "openvino": "openvino",
    "gguf": "gguf",
    "hf": "safetensors",
}  # as people say it -> Model.form
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
    return home() / "compiled" / disk.digest_of_text(str(model.resolve()))[:16]


class Library:
    """The models below one folder. Several processes may use it at once."""

    def __init__(self, folder: Path | None = None) -> None:
        self.home = folder or home()
        self.models = self.home / "models"

    def find(self, name: str) -> Model | None:
        """Return the model of that name or alias when all its files are there."""
        asked = catalogue.asked(name)
        folder = self.models / (catalogue.kept_as(*asked) if asked else name)
        if folder.parent != self.models or folder.name.startswith("."):
            return None
        found = manifest.read(folder)
        return _complete(folder, found) if found else None

    def all(self) -> list[Model]:
        """List every model that is whole, by name."""
        if not self.models.is_dir():
            return []
        names = sorted(path.name for path in self.models.iterdir() if path.is_dir())
        return [model for name in names if (model := self.find(name))]

    def known(self) -> list[Model]:
        """List every model that has a manifest, whole or not."""
        if not self.models.is_dir():
            return []
        folders = sorted(path for path in self.models.iterdir() if path.is_dir())
        found = [(folder, manifest.read(folder)) for folder in folders if not folder.name.startswith(".")]
        return [
            Model(one.name, Path(one.folder) if one.folder else folder, one, _draft_of(one))
            for folder, one in found
            if one
        ]

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
            return self._from_source(Source.parse(name), progress, graph)
        if _looks_like_path(name):
            return self._from_path(Path(name).expanduser(), progress, graph)
        if found := self.find(name):
            return found
        if asked := catalogue.asked(name):
            entry, precision = asked
            kept, digest = catalogue.kept_as(entry, precision), "" if precision else entry.digest
            return self._pull(kept, offers(name, precision, None), digest, progress, graph)
        if Path(name).exists():
            return self._from_path(Path(name), progress, graph)
        known = dict.fromkeys([*catalogue.names(), *(model.name for model in self.all())])
        raise UnknownModel(f"There is no model called `{name}`", suggestion(name, known))

    def pull(
        self, name: str, progress: Progress, precision: str | None = None, form: str | None = None
    ) -> Model:
        """Fetch what `name` means in a precision and a form, unless it is here.

        Without them it is what `resolve` would fetch. Raises BadValue where it is not to be had so or is
        here in another form, and what `resolve` raises.
        """
        asked = catalogue.asked(name)
        if asked is None:
            if precision or form:
                raise BadValue(f"`{name}` is not in the catalogue", "Name the file: `hf:OWNER/NAME:FILE`")
            return self.resolve(name, progress, FORMS)
        entry, known = asked
        precision = precision or known
        kept = catalogue.kept_as(entry, precision)
        if found := self.find(kept):
            if form and found.form(_OURS[form]) is None:
                raise BadValue(f"`{kept}` is here in another form", f"`localspec rm {kept}` first")
            return found
        sweep(self.models)
        sources = offers(name, precision, form)
        graph: Graph = "no" if form in (catalogue.GGUF, catalogue.HF) else "may"
        digest = entry.digest if sources == entry.sources else ""
        return self._pull(kept, sources, digest, progress, graph)

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
        found = self.find(name)
        if found is None:
            known = [model.name for model in self.all()]
            raise UnknownModel(f"`{name}` is not in the library", suggestion(name, known))
        with locked(self.models, found.name, progress), disk.writing(self.models):
            gone, compiled = partial_of(self.models, found.name), compiled_folder(found.folder)
            (self.models / found.name).rename(gone)
            freed = disk.freeable(gone) + disk.freeable(compiled)
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
            with disk.writing(self.models, needed), _removed_on_failure(partial):
                disk.check_room(self.models, needed)
                partial.mkdir()
                facts = arrival.graph(partial, progress, graph)
                files = {path.name: path for path in partial.iterdir()}
                sizes = {name: path.stat().st_size for name, path in files.items()}
                digests = {name: disk.digest_of(path, progress) for name, path in files.items()}
                disk.sync_folder(partial)
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

    def _from_source(self, source: Source, progress: Progress, graph: Graph) -> Model:
        entry = next((entry for entry in catalogue.entries() if source in entry.sources), None)
        name = entry.name if entry else _name_of(source)
        return self.find(name) or self._pull(name, (source,), entry.digest if entry else "", progress, graph)

    def _pull(
        self, name: str, sources: tuple[Source, ...], digest: str, progress: Progress, graph: Graph
    ) -> Model:
        """Fetch and import a model under its name; another process that does the same is waited for."""
        with locked(self.models, name, progress):
            if found := self.find(name) or self.by_digest(digest):
                return found
            downloads = self.home / "downloads" / name
            arrival = Arrival.fetched(fetch_first(sources, downloads, progress, digest), progress)
            model = self.by_digest(arrival.digest) or self.import_arrival(name, arrival, progress, graph)
            shutil.rmtree(downloads, ignore_errors=True)
        return model

    def _from_path(self, path: Path, progress: Progress, graph: Graph) -> Model:
        if path.is_file():
            return self._from_gguf(path, progress, graph)
        if (path / GRAPH).is_file():
            return _in_place(path)
        if path.is_dir():
            return self._from_folder(path, progress, graph)
        hint = f"Did you mean `hf:{path}`?" if _REPOSITORY.fullmatch(path.as_posix()) else "Check the path"
        raise UnknownModel(f"There is no file or folder `{path}`", hint)

    def _from_gguf(self, path: Path, progress: Progress, graph: Graph) -> Model:
        """Import a GGUF file once; later its size and time are enough, or its digest at another place."""
        with disk.reading(path):
            place = Place.of(path)
            if found := self._by_places([place]):
                return found
            digest = disk.digest_of(path, progress, f"Reading {path.name}")
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
        name = f"{path.resolve().name}-{disk.digest_of_text(repr(places))[:8]}"
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
        with disk.writing(self.models):
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
        with disk.writing(self.models, needed), _removed_on_failure(partial):
            disk.check_room(self.models, needed)
            partial.mkdir()
            _described(fill(partial), partial, progress).write(partial)
            disk.sync_folder(partial)
            if final.exists():  # it is not whole, or we would not be here
                shutil.rmtree(final)
            partial.rename(final)
        found = self.find(name)
        assert found is not None, f"{name} was made and is not whole"
        return found


def offers(name: str, precision: str | None, form: str | None) -> tuple[Source, ...]:
    """Return where a model of the catalogue can be had; raises BadValue where it cannot be had so."""
    asked = catalogue.asked(name)
    assert asked is not None
    entry, known = asked
    found = entry.offered(precision or known, form)
    if not found:
        there = [f"{kind} ({', '.join(sources)})" for kind, sources in entry.forms.items()]
        raise BadValue(
            f"`{entry.name}` is not to be had as {' '.join(filter(None, (precision or known, form)))}",
            f"There is {', '.join(there)}; `localspec quantize` makes other bits of it",
        )
    return tuple(found)


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _described(found: Manifest, partial: Path, progress: Progress) -> Manifest:
    """Add what is known once the files are there: their sizes and digests, the time, our version."""
    files = Path(found.folder) if found.folder else partial
    sizes = {path.name: path.stat().st_size for path in sorted(files.iterdir()) if path.is_file()}
    own = {} if found.folder else {name: disk.digest_of(files / name, progress) for name in sizes}
    return msgspec.structs.replace(
        found, sizes=sizes, digests={**own, **found.digests}, created=manifest.now(), localspec=_version()
    )


def _complete(folder: Path, found: Manifest) -> Model | None:
    """Return the model unless a file of it is missing or has another size."""
    files = Path(found.folder) if found.folder else folder
    whole = all(disk.size_of(files / name) == size for name, size in found.sizes.items())
    if found.name != folder.name or "tokenizer.json" not in found.sizes or not whole:
        return None
    return Model(found.name, files, found, _draft_of(found))


def _in_place(path: Path) -> Model:
    """Use an OpenVINO folder where it is."""
    if not (path / "tokenizer.json").is_file():
        raise UnsupportedModel(
            f"`{path}` has `{GRAPH}` and no `tokenizer.json`", "Copy it from the model's own repository"
        )
    whole = path.resolve()
    found = manifest.read(whole)
    if found is None:
        found = Manifest(name=whole.name, source=f"file:{whole}", **importing.described(whole))
    return Model(found.name, whole, found, _draft_of(found))


def _draft_of(found: Manifest) -> str | None:
    """Return the catalogue's draft for a model of the library, whatever its precision and name."""
    start, _, precision = found.name.rpartition("-")
    entry = catalogue.lookup(found.name)
    if entry is None and precision in catalogue.PRECISIONS:
        entry = catalogue.lookup(start)
    known = map(catalogue.by_digest, found.digests.values())
    entry = entry or next(filter(None, known), None)
    return entry.draft if entry else None


def _looks_like_path(name: str) -> bool:
    return name.endswith(".gguf") or name.startswith((".", "~")) or "/" in name or os.sep in name


def _name_of(source: Source) -> str:
    """Name a model that is not in the catalogue: `OWNER--NAME`, with file and revision if given."""
    parts = (source.name, source.file.removesuffix(".gguf"), source.version[:12])
    return re.sub(r"[^\w.-]+", "--", "--".join(part for part in parts if part)).lstrip(".")


def _version() -> str:
    try:
        return version("localspec")
    except PackageNotFoundError:
        return ""
