"""The models in the library's folder: look them up, add and remove them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from localspec.disk import atomic, private
from localspec.errors import UnknownModel, nearest
from localspec.library import catalogue, manifest, storage
from localspec.library.importing import completeness, refusals
from localspec.library.locks import locked, remove_lock, remove_unused_locks, unless_locked
from localspec.library.manifest import Manifest, SourceFile
from localspec.library.model import StoredModel
from localspec.library.paths import check_name, compiled_folder, default_home, home
from localspec.library.progress import Progress

if TYPE_CHECKING:  # a model that is installed needs nothing of it
    from localspec.library.importing.source import GraphMode, ImportSource

MADE = {  # folder -> what is in it, and can be made again
    "downloads": "interrupted downloads",
    "building": "interrupted builds",
    "compiled": "compiled graphs and prompt caches",
    "tuned": "measurements of interrupted searches",
    "transcripts": "records of which transcripts are finished",
}


class InstalledModels:
    """The models below one folder. Several processes may use it at once.

    Opening it removes what killed processes left in the folder, and makes the usual one private.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.home = folder or home()
        self.models = self.home / "models"
        atomic.sweep(self.home)
        if self.home == default_home():
            private.restrict(self.home)

    def find(self, name: str) -> StoredModel | None:
        """Return the model with that name or alias, None unless all its files are present."""
        parsed = catalogue.parse_name(name)
        if parsed is None:
            return self.load(name)
        entry, precision = parsed
        model = self.load(catalogue.library_name(entry, precision))
        if model or precision is None:
            return model
        default = self.load(entry.name)
        return default if default and default.manifest.comes_from(entry.sources_in(precision)) else None

    def load(self, name: str) -> StoredModel | None:
        """Return the model in the folder `name`, None unless all its files are present."""
        folder = self.models / name
        if folder.parent != self.models or folder.name.startswith("."):
            return None
        about = manifest.read(folder)
        if about is None:
            return None
        about.check()
        return completeness.load_if_complete(folder, about)

    def reference(self, model: StoredModel) -> str:
        """Return what means this model later: its name, or its folder if that lies outside the library."""
        found = self.load(model.name)
        return model.name if found and found.folder == model.folder else str(model.folder)

    def all(self, kind: str | None = None) -> list[StoredModel]:
        """List the complete models, or those of one kind, by name."""
        models = [completeness.load_if_complete(folder, about) for folder, about in self._manifests()]
        return [model for model in models if model and kind in (None, model.kind)]

    def known(self) -> list[StoredModel]:
        """List the models that have a manifest, complete or not."""
        return [
            StoredModel(about.name, Path(about.folder or folder), about, completeness.draft_of(about))
            for folder, about in self._manifests()
        ]

    def _manifests(self) -> list[tuple[Path, Manifest]]:
        """Return every readable manifest with its folder, by name."""
        if not self.models.is_dir():
            return []
        folders = sorted(path for path in self.models.iterdir() if path.is_dir())
        read = [(folder, manifest.read(folder)) for folder in folders if not folder.name.startswith(".")]
        return [(folder, about) for folder, about in read if about]

    def drafts_for(self, target: StoredModel) -> list[StoredModel]:
        """List the drafts that were built for `target`, the latest first."""
        own = self.reference(target)
        built = [model for model in self.all() if model.manifest.target == own]
        return sorted(built, key=lambda model: model.manifest.created, reverse=True)

    def by_digest(self, digest: str) -> StoredModel | None:
        """Return the model that holds, or was imported from, the file with this sha256."""
        models = self.all() if digest else []
        return next((model for model in models if digest in model.manifest.digests.values()), None)

    def by_source_files(self, files: list[SourceFile]) -> StoredModel | None:
        """Return the model that was imported from these unchanged files."""
        required = set(files)
        return next((model for model in self.all() if required <= set(model.manifest.source_files)), None)

    def add(
        self, name: str, fill: Callable[[Path], Manifest], progress: Progress, needed: int = 0
    ) -> StoredModel:
        """Add a model that `fill` writes into an empty folder, unless the name exists.

        The folder gets its final name once everything is written; `needed` bytes must be free. Raises
        BadValue for an invalid name.
        """
        check_name(name)
        with locked(self.models, name, progress):
            return self.find(name) or self._build(name, fill, progress, needed)

    def import_model(
        self, name: str, source: ImportSource, progress: Progress, graph: GraphMode
    ) -> StoredModel:
        """Import a model; the caller holds the lock of its name."""
        no_graph = source.refusal(graph)
        possible: GraphMode = "skip" if no_graph else graph

        def fill(folder: Path) -> Manifest:
            return source.import_into(folder, name, progress, possible, no_graph)

        return self._build(name, fill, progress, source.needed_bytes(possible))

    def add_graph(self, model: StoredModel, progress: Progress, graph: GraphMode) -> StoredModel:
        """Add the OpenVINO graph to a model imported without one, unless `graph` is "skip".

        A model that OpenVINO cannot read is refused if `graph` is required, and not tried twice.
        """
        path = model.files_in("gguf") or model.files_in("safetensors")
        if graph == "skip" or model.files_in("openvino") or path is None:
            return model
        if refused := refusals.remembered(model.manifest):
            if graph == "required":
                raise refused
            return model
        from localspec.library.importing.source import ImportSource

        source = ImportSource.from_local("gguf" if path.is_file() else "safetensors", path)
        with locked(self.models, model.name, progress):
            current = self.find(model.name) or model
            if current.files_in("openvino"):
                return current
            no_graph = source.refusal(graph)
            needed = 0 if no_graph else source.needed_bytes(graph)
            with storage.storage_errors(self.models, needed), atomic.scratch(model.folder) as partial:
                storage.check_free_space(self.models, needed)
                facts = {"no_graph": no_graph} if no_graph else source.write_graph(partial, progress, graph)
                sizes = completeness.sizes_of(partial)
                digests = completeness.digests_of(partial, sizes, f"Checking {model.name}", progress)
                samples = completeness.samples_of(partial / name for name in sizes)
                atomic.sync(partial)
                for name in sizes:
                    (partial / name).replace(model.folder / name)
                updated = msgspec.structs.replace(
                    current.manifest,
                    sizes=current.manifest.sizes | sizes,
                    digests=current.manifest.digests | digests,
                    samples=current.manifest.samples | samples,
                    **facts,
                )
                updated.write(model.folder)
        return StoredModel(model.name, model.folder, updated, model.draft)

    def add_source_file(self, model: StoredModel, file: SourceFile) -> StoredModel:
        """Record that the model's GGUF also lies at `file`, so that it is not hashed again."""
        others = [known for known in model.manifest.source_files if known.path != file.path]
        updated = msgspec.structs.replace(model.manifest, source_files=[*others, file])
        if updated.dropped:  # here it is again
            path = Path(file.path)
            samples = updated.samples | completeness.samples_of([path])
            digest = updated.digests.get(Path(updated.dropped).name, "")
            digests = updated.digests | ({path.name: digest} if digest else {})
            updated = msgspec.structs.replace(
                updated, weights=file.path, dropped="", samples=samples, digests=digests
            )
        with storage.storage_errors(self.models):
            updated.write(self.models / model.name)
        return StoredModel(model.name, model.folder, updated, model.draft)

    def remove(self, name: str, progress: Progress) -> int:
        """Delete a model and return the bytes that were freed; raise UnknownModel if it does not exist.

        Files with another hard link, in another model's folder, free nothing.
        """
        model = self.find(name) or next((model for model in self.known() if model.name == name), None)
        if model is None:
            names = [model.name for model in self.all()]
            raise UnknownModel(f"`{name}` is not in the library", nearest(name, names, "localspec list"))
        with locked(self.models, model.name, progress), storage.storage_errors(self.models):
            folder, compiled = self.models / model.name, compiled_folder(model.folder)
            freed = storage.reclaimable_bytes(folder) + storage.reclaimable_bytes(compiled)
            shutil.rmtree(compiled, ignore_errors=True)
            atomic.discard(folder)
            remove_lock(self.models, model.name)
        return freed

    def made_bytes(self, folders: Iterable[str] = MADE) -> dict[str, int]:
        """Return the bytes of what can be made again, by what it is; what takes none is left out."""
        sizes = {MADE[name]: storage.reclaimable_bytes(self.home / name) for name in folders}
        return {title: size for title, size in sizes.items() if size}

    def remove_made(self, progress: Progress) -> int:
        """Delete what can be made again, unless another process is making it; return the bytes freed."""
        before = sum(self.made_bytes().values())
        with storage.storage_errors(self.home):
            for path in (path for name in MADE for path in sorted((self.home / name).glob("[!.]*"))):
                locks = {"downloads": self.models, "building": path.parent}.get(path.parent.name)
                with unless_locked(locks, path.name) as free:
                    if free:
                        atomic.discard(path)
                    else:
                        progress.say(f"Another localspec is using `{path.name}`: it stays")
            for folder in (self.models, self.home / "building"):
                remove_unused_locks(folder)
        return before - sum(self.made_bytes().values())

    def _build(
        self, name: str, fill: Callable[[Path], Manifest], progress: Progress, needed: int
    ) -> StoredModel:
        """Build a model in a temporary folder, then rename it; the caller holds the lock of `name`."""
        final = self.models / name
        with storage.storage_errors(self.models, needed), atomic.folder(final) as partial:
            storage.check_free_space(self.models, needed)
            completeness.finish_manifest(fill(partial), partial, progress).write(partial)
            if final.exists():  # incomplete, or the model would have been found
                atomic.discard(final)
        model = self.find(name)
        assert model is not None, f"{name} is incomplete after its import"
        return model
