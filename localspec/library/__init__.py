"""A name -> files on disk: the catalogue, fetching, importing, and what a model says about itself."""

from __future__ import annotations

from localspec.library.catalogue import Entry
from localspec.library.manifest import Manifest
from localspec.library.model import Model
from localspec.library.progress import Progress, Silent, Terminal
from localspec.library.sources import Source
from localspec.library.store import Library, check_name, compiled_folder, home

__all__ = [
    "Entry",
    "Library",
    "Manifest",
    "Model",
    "Progress",
    "Silent",
    "Source",
    "Terminal",
    "check_name",
    "compiled_folder",
    "home",
]
