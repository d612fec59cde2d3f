"""The models on this machine: the catalogue, downloads, imports, and what each model says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localspec.library.catalogue import CatalogueEntry
    from localspec.library.manifest import Manifest
    from localspec.library.model import StoredModel
    from localspec.library.paths import check_name, compiled_folder, home
    from localspec.library.progress import Progress, Silent
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
    "check_name",
    "compiled_folder",
    "home",
]

_PLACES = {
    "CatalogueEntry": "catalogue",
    "Library": "store",
    "Manifest": "manifest",
    "StoredModel": "model",
    "Progress": "progress",
    "Silent": "progress",
    "Source": "sources",
    "check_name": "paths",
    "compiled_folder": "paths",
    "home": "paths",
}


def __getattr__(name: str) -> Any:
    """Import a name on its first use: the catalogue alone, for a shell's completion, is read fast."""
    if name not in _PLACES:
        raise AttributeError(f"module `localspec.library` has no attribute `{name}`")
    from importlib import import_module

    return getattr(import_module(f"localspec.library.{_PLACES[name]}"), name)
