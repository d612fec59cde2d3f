"""The models on this machine: the catalogue, downloads, imports, and what each model says about itself."""

from __future__ import annotations

from localspec.library.catalogue import CatalogueEntry
from localspec.library.manifest import Manifest
from localspec.library.model import StoredModel
from localspec.library.paths import check_name, compiled_folder, home
from localspec.library.progress import Progress, Silent, Terminal
from localspec.library.sources import Source
from localspec.library.store import Library

__all__ = [
    "CatalogueEntry",
    "Library",
    "Manifest",
    "StoredModel",
    "Progress",
    "Silent",
    "Source",
    "Terminal",
    "check_name",
    "compiled_folder",
    "home",
]
