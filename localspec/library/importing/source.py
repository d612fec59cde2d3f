"""Something that is to become a model of the library: a GGUF file or a folder, fetched or given."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.errors import DigestMismatch, UnsupportedModel
from localspec.formats.files import weight_files
from localspec.library import manifest, storage
from localspec.library.importing import convert
from localspec.library.manifest import Manifest, Place
from localspec.library.progress import Progress
from localspec.library.sources import Fetched

Graph = Literal["must", "may", "no"]  # whether an import makes an OpenVINO graph

ROOM = 1.8  # an import writes up to this many times the bytes it reads: four bits may become eight


@dataclass(frozen=True, slots=True)
class Arrival:
    """What it is, where it is from, and a GGUF's sha256."""

    kind: str  # gguf, safetensors or openvino
    path: Path
    source: str
    revision: str = ""
    digest: str = ""
    owned: bool = False  # the file is ours, so it moves into the model's folder
    copied: bool = False  # the files stay where they are, and the model has copies

    @classmethod
    def fetched(cls, fetched: Fetched, progress: Progress) -> Arrival:
        """Take what a source brought; raise DigestMismatch for a GGUF that is not the one expected."""
        digest = fetched.digest
        if fetched.kind == "gguf" and not digest:
            digest = storage.digest_of(fetched.path, progress, f"Checking {fetched.path.name}")
        if fetched.expected and digest != fetched.expected:
            raise DigestMismatch(
                f"`{fetched.path}` is not the file expected: sha256 {digest[:12]}…, "
                f"not {fetched.expected[:12]}…",
                "Delete it and try again; if it stays so, do not use that file",
            )
        source = fetched.source
        return cls(fetched.kind, fetched.path, str(source), source.version, digest, source.kind == "pypi")

    @classmethod
    def given(cls, kind: str, path: Path, digest: str = "", copied: bool = False) -> Arrival:
        """Take a file or folder of the user's, which stays where it is."""
        whole = path.resolve()
        return cls(kind, whole, f"file:{whole}", digest=digest, copied=copied)

    @property
    def files(self) -> list[Path]:
        """The files that hold the weights."""
        return [self.path] if self.kind == "gguf" else weight_files(self.path)

    def needed(self, graph: Graph) -> int:
        """Return how many bytes of disk an import takes, about."""
        if self.kind == "openvino":
            return sum(file.stat().st_size for file in _files(self.path)) if self.copied else 0
        size = sum(file.stat().st_size for file in self.files)
        return int(ROOM * size * (graph != "no")) + size * self.copied

    def fill(self, name: str, into: Path, progress: Progress, graph: Graph) -> Manifest:
        """Make the model's files in the folder `into` and describe them.

        Raises UnsupportedModel for one that has no OpenVINO graph and must have it; where it only may have
        one, that is said.
        """
        linked = self.source.startswith("file:") and not self.copied
        places = [Place.of(file) for file in self.files] if linked and self.kind != "openvino" else []
        facts = self._facts(into, progress)
        if self.kind != "openvino" and graph != "no":
            facts |= self.graph(into, progress, graph)
        digests = {self.path.name: self.digest} if self.digest else {}
        if linked and self.kind != "gguf":  # whoever verifies it later has nothing else to go by
            files = self.files if self.kind == "safetensors" else _files(self.path)
            digests = {file.name: storage.digest_of(file, progress, f"Reading {file.name}") for file in files}
        return Manifest(
            name=name,
            source=self.source,
            revision=self.revision,
            digests=digests,
            folder=str(self.path) if self.kind == "openvino" and not self.copied else "",
            weights="" if self.kind == "openvino" else self._keep(into),
            places=places,
            **facts,
        )

    def _facts(self, into: Path, progress: Progress) -> convert.Facts:
        if self.kind == "gguf":
            return convert.from_gguf(self.path, into)
        if self.kind == "safetensors":
            return convert.from_folder(self.path, into)
        if self.copied:
            for file in _files(self.path):
                shutil.copyfile(file, into / file.name)
        return convert.described(self.path)

    def graph(self, into: Path, progress: Progress, graph: Graph) -> convert.Facts:
        """Write the OpenVINO graph into the folder `into`; return what the manifest should say of it."""
        try:
            return convert.graph(self.path, into, progress)
        except UnsupportedModel as error:
            if graph == "must":
                raise
            progress.say(f"{error.message}; another engine may read it")
            return {}

    def _keep(self, into: Path) -> str:
        """Keep the weights for engines that read them: our GGUF moves in, the user's files stay."""
        if self.copied and self.kind == "safetensors":
            for file in self.files:
                shutil.copyfile(file, into / file.name)
            return "."
        if self.copied:
            shutil.copyfile(self.path, into / self.path.name)
            return self.path.name
        if not self.owned:
            return str(self.path)
        shutil.move(self.path, into / self.path.name)
        return self.path.name


def _files(folder: Path) -> list[Path]:
    """List the files of an OpenVINO folder, without a manifest of ours, which the copy gets anew."""
    return [path for path in folder.iterdir() if path.is_file() and path.name != manifest.FILE]
