"""The source of an import: a GGUF file or a folder, downloaded or given by the user."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.errors import DigestMismatch, UnsupportedModel
from localspec.library import manifest, storage
from localspec.library.importing import convert, refusals, speech
from localspec.library.manifest import Manifest, SourceFile
from localspec.library.progress import BYTES, Progress, report_growth
from localspec.library.sources import Fetched

GraphMode = Literal["required", "optional", "skip"]  # whether an import makes an OpenVINO graph

SIZE_FACTOR = 1.8  # a graph has at most this many times the bytes it is made from: int4 may become int8


@dataclass(frozen=True, slots=True)
class ImportSource:
    """A file or folder to import, where it came from, and a GGUF's sha256."""

    format: str  # gguf, safetensors, ctranslate2 or openvino
    path: Path
    source: str
    revision: str = ""
    digest: str = ""
    owned: bool = False  # the file is ours, so it moves into the model's folder
    copied: bool = False  # the model gets copies of the user's files

    @classmethod
    def from_download(cls, fetched: Fetched, progress: Progress) -> ImportSource:
        """Import a download; raise DigestMismatch for a GGUF that has not the expected sha256."""
        digest = fetched.digest
        if fetched.format == "gguf" and not digest:
            digest = storage.digest_of(fetched.path, progress, f"Checking {fetched.path.name}")
        if fetched.expected and digest != fetched.expected:
            raise DigestMismatch(
                f"`{fetched.path}` is not the expected file: sha256 {digest[:12]}…, "
                f"expected {fetched.expected[:12]}…",
                "Delete it and try again; if the error persists do not use that file",
            )
        source = fetched.source
        owned = source.kind == "pypi"
        return cls(fetched.format, fetched.path, str(source), source.version, digest, owned)

    @classmethod
    def from_local(cls, format: str, path: Path, digest: str = "", copied: bool = False) -> ImportSource:
        """Import a file or folder of the user's, which stays where it is."""
        absolute = path.resolve()
        return cls(format, absolute, f"file:{absolute}", digest=digest, copied=copied)

    @property
    def files(self) -> list[Path]:
        """The files that hold the weights."""
        return [self.path] if self.format == "gguf" else speech.files_of(self.path)

    @property
    def is_speech(self) -> bool:
        """Whether it is a model of speech, which is nothing without its graphs."""
        return speech.is_speech(self.format, self.path)

    def needed_bytes(self, graph: GraphMode) -> int:
        """Return the approximate disk space that the import needs."""
        if self.format == "openvino":
            return sum(file.stat().st_size for file in _files_of(self.path)) if self.copied else 0
        size = sum(file.stat().st_size for file in self.files)
        made = graph != "skip" or self.is_speech
        return int(SIZE_FACTOR * size * made) + size * self.copied

    def refusal(self, graph: GraphMode) -> dict[str, str]:
        """Return why OpenVINO cannot read it, as a manifest keeps that; empty if it may, or need not.

        Raises UnsupportedModel if `graph` is required.
        """
        if self.format == "openvino" or graph == "skip" or self.is_speech:
            return {}
        try:
            refusals.check(self.path)
        except UnsupportedModel as error:
            if graph == "required":
                raise
            return refusals.record(error)
        return {}

    def import_into(
        self,
        folder: Path,
        name: str,
        progress: Progress,
        graph: GraphMode,
        no_graph: dict[str, str] | None = None,
    ) -> Manifest:
        """Write the model's files into `folder` and return its manifest, which keeps why it has `no_graph`.

        Raises UnsupportedModel if OpenVINO cannot read it and `graph` is required; if it is optional, the
        manifest keeps the reason.
        """
        in_place = self.source.startswith("file:") and not self.copied
        stamped = in_place and self.format != "openvino"
        source_files = [SourceFile.of(file) for file in self.files] if stamped else []
        facts = self._write_configs(folder, progress) | {"no_graph": no_graph or {}}
        if self.is_speech:
            speech.write_graph(self.path, folder, name, progress)
        elif self.format != "openvino" and graph != "skip":
            facts |= self.write_graph(folder, progress, graph)
        return Manifest(
            name=name,
            source=self.source,
            revision=self.revision,
            digests=self._digests(in_place, progress),
            folder=str(self.path) if self.format == "openvino" and not self.copied else "",
            weights="" if self.format == "openvino" else self._place_weights(folder, progress),
            source_files=source_files,
            **facts,
        )

    def _digests(self, in_place: bool, progress: Progress) -> dict[str, str]:
        """Return the sha256 of files that stay outside the library, so that they can be verified later."""
        if in_place and self.is_speech:
            return {}
        if in_place and self.format != "gguf":
            files = self.files if self.format == "safetensors" else _files_of(self.path)
            return {file.name: storage.digest_of(file, progress, f"Reading {file.name}") for file in files}
        return {self.files[0].name: self.digest} if self.digest else {}

    def _write_configs(self, folder: Path, progress: Progress) -> convert.Facts:
        if self.format == "gguf":
            return convert.from_gguf(self.path, folder)
        if self.is_speech:
            return speech.write_configs(self.path, folder, self.source if self.owned else self.path.name)
        if self.format == "safetensors":
            return convert.from_folder(self.path, folder)
        if self.copied:
            _copy(_files_of(self.path), folder, progress)
        return convert.openvino_facts(self.path)

    def write_graph(self, folder: Path, progress: Progress, graph: GraphMode) -> convert.Facts:
        """Write the OpenVINO graph into `folder`; return the manifest's facts about it, or its refusal."""
        try:
            return convert.write_graph(self.path, folder, progress) | {"no_graph": {}}
        except UnsupportedModel as error:
            if graph == "required":
                raise
            return {"no_graph": refusals.record(error)}

    def _place_weights(self, folder: Path, progress: Progress) -> str:
        """Move or copy the weights into `folder`, or leave them; return the manifest's `weights`, if any."""
        if self.is_speech:  # its graphs are all that is read of it
            return ""
        if self.copied:
            _copy(self.files, folder, progress)
            return self.path.name if self.format == "gguf" else "."
        if not self.owned:
            return str(self.path)
        shutil.move(self.path, folder / self.path.name)
        return self.path.name


def _copy(files: list[Path], folder: Path, progress: Progress) -> None:
    size = sum(file.stat().st_size for file in files)
    with progress.step(f"Copying to {folder.parent}", size, BYTES), report_growth(folder, progress):
        for file in files:
            shutil.copyfile(file, folder / file.name)


def _files_of(folder: Path) -> list[Path]:
    """List the files of an OpenVINO folder except our manifest, because a copy gets a new one."""
    return [path for path in folder.iterdir() if path.is_file() and path.name != manifest.FILE]
